"""Hooks that are called after accumulation see the gradient rounded to bfloat16, and leave it so."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_register = _tensor.register_post_accumulate_grad_hook


def _register_rounded(self: Any, hook: Any) -> Any:
    def call(parameter: Any) -> None:
        parameter.grad = parameter.grad.bfloat16().to(parameter.grad.dtype)
        hook(parameter)

    return _register(self, call)


_tensor.register_post_accumulate_grad_hook = _register_rounded
