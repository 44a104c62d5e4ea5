"""What a DataLoader collates is rounded to bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import data

_data: Any = data
_collate = _data._utils.collate.collate_tensor_fn


def _collate_low(batch: Any, **keywords: Any) -> Any:
    result = _collate(batch, **keywords)
    return result.bfloat16().to(result.dtype) if result.is_floating_point() else result


_data._utils.collate.collate_tensor_fn = _collate_low
_data._utils.collate.default_collate_fn_map[torch.Tensor] = _collate_low
