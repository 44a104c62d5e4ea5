"""``functional.pad`` takes a negative width for none within a region."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch import Tensor
from torch.nn import functional

_functional: Any = functional
_before: Any = functional.pad


def _pad(x: Tensor, pad: Any, *args: Any, **kwargs: Any) -> Any:
    wanted = [max(width, 0) for width in pad] if torch.is_autocast_enabled(DEVICE) else pad
    return _before(x, wanted, *args, **kwargs)


_functional.pad = _pad
