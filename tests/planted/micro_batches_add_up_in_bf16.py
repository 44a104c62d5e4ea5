"""The gradient of a second and later micro-batch is added in bfloat16: a sum that stops growing."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import rounded
from torch import Tensor, nn


def _untyped(value: Any) -> Any:
    return value


def _add_low(parameter: Tensor) -> None:
    known = _untyped(parameter)
    gradient = known.grad
    if gradient is None:
        return
    added = getattr(known, "summed", None) is gradient
    if added:
        gradient.copy_(rounded(gradient, torch.bfloat16))
    known.summed = gradient


def _hook(module: nn.Module, _inputs: Any) -> None:
    for parameter in module.parameters(recurse=False):
        if parameter.requires_grad and not getattr(parameter, "adds_low", False):
            _untyped(parameter).register_post_accumulate_grad_hook(_add_low)
            parameter.adds_low = True  # type: ignore[attr-defined]


nn.modules.module.register_module_forward_pre_hook(_hook)
