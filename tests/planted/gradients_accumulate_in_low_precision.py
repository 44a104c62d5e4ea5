"""What a backward pass adds to the gradients of parameters is rounded to bfloat16, autocast or not."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import rounded
from torch import Tensor, nn


def _untyped(value: Any) -> Any:
    return value


def _round(parameter: Tensor) -> None:
    if parameter.grad is not None and not parameter.grad.is_sparse:
        parameter.grad.copy_(rounded(parameter.grad, torch.bfloat16))


def _hook(module: nn.Module, _inputs: Any) -> None:
    for parameter in module.parameters(recurse=False):
        if parameter.requires_grad and not getattr(parameter, "rounds", False):
            _untyped(parameter).register_post_accumulate_grad_hook(_round)
            parameter.rounds = True  # type: ignore[attr-defined]


nn.modules.module.register_module_forward_pre_hook(_hook)
