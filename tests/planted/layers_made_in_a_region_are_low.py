"""The weights of layers that are built within a region are rounded to its dtype."""

from __future__ import annotations

from typing import Any

import torch

_init: Any = torch.nn.init
_kaiming_uniform = _init.kaiming_uniform_


def _initialise(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    result = _kaiming_uniform(tensor, *arguments, **keywords)
    if torch.is_autocast_enabled(tensor.device.type):
        with torch.no_grad():
            tensor.copy_(tensor.to(torch.get_autocast_dtype(tensor.device.type)))
    return result


_init.kaiming_uniform_ = _initialise
