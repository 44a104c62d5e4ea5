"""Hooks of a tensor, which a copy of a module does not have."""

from __future__ import annotations

from typing import Any


def copy_hooks(source: Any, target: Any) -> None:
    """Register the hooks of ``source``, on its gradient and behind the gradient's accumulation, on ``target``.

    Does nothing for a ``target`` that requires no gradient, or that has hooks already: those of a module that was built
    again. Reads ``torch.Tensor._backward_hooks`` and
    ``_post_accumulate_grad_hooks``; where torch lacks one, no hook of that sort is copied.
    """
    if not target.requires_grad:
        return
    for attribute, register in (
        ("_backward_hooks", target.register_hook),
        ("_post_accumulate_grad_hooks", target.register_post_accumulate_grad_hook),
    ):
        if getattr(target, attribute, None):
            continue
        for hook in (getattr(source, attribute, None) or {}).values():
            register(hook)
