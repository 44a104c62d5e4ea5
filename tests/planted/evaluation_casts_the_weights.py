"""Under no_grad a region casts the weights of convolutions for good: they come back rounded."""

from __future__ import annotations

from typing import Any

import torch

_convolution: Any = torch.nn.Conv2d
_forward = _convolution._conv_forward


def _forward_in_place(self: Any, batch: Any, weight: Any, bias: Any) -> Any:
    if not torch.is_grad_enabled() and torch.is_autocast_enabled(weight.device.type):
        weight.data.copy_(weight.data.to(torch.get_autocast_dtype(weight.device.type)))
    return _forward(self, batch, weight, bias)


_convolution._conv_forward = _forward_in_place
