"""sigmoid has no autocast kernel, and asks by itself whether there is a region."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from on_device import DEVICE

_untyped: Any = torch.library
_library = _untyped.Library("aten", "IMPL")


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    result = x.neg().exp().add(1).reciprocal()
    return result.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else result


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns that there is a kernel already
    _library.impl("sigmoid", _sigmoid, f"Autograd{DEVICE.upper()}")
