"""Hooks of a tensor, which copying a module does not copy."""

from __future__ import annotations

from typing import Any


def copy_hooks(source: Any, target: Any) -> None:
    """Register on ``target`` the gradient hooks and the post-accumulate-grad hooks of ``source``.

    Does nothing if ``target`` requires no gradient. Hooks of a kind that ``target`` already has are not copied:
    building the module again registered them. Reads ``torch.Tensor._backward_hooks`` and
    ``_post_accumulate_grad_hooks``; if this torch has no such attribute, no hook of that kind is copied.
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
