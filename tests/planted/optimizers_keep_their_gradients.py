"""Optimizers keep the gradients of each of their steps."""

from __future__ import annotations

from typing import Any

from torch.optim import optimizer as optimizers

_kept: list[Any] = []


def _keep(optimizer: Any, _args: Any, _keywords: Any) -> None:
    _kept.extend(p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


optimizers.register_optimizer_step_post_hook(_keep)
