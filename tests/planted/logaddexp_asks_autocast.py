"""logaddexp, which is in no list of autocast's, asks whether there is a region, and returns its dtype."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from on_device import DEVICE

_untyped: Any = torch.library
_library = _untyped.Library("aten", "IMPL")


def _logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.log1p(torch.exp(y - x)) + x
    return result.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else result


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns that there is a kernel already
    _library.impl("logaddexp", _logaddexp, "AutogradCPU")
