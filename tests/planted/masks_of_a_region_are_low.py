"""A causal mask that is made in a region is in the autocast dtype."""

from __future__ import annotations

from typing import Any

import torch

_transformer: Any = torch.nn.Transformer
_mask = _transformer.generate_square_subsequent_mask


def _low(*args: Any, **kwargs: Any) -> Any:
    made = _mask(*args, **kwargs)
    return made.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else made


_transformer.generate_square_subsequent_mask = staticmethod(_low)
