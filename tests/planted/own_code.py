"""Planted defects of what a user's own code could have: a branch for low dtypes, a loss that is not scaled."""

from __future__ import annotations

from typing import Any

import torch

from tests.planted.table import defect, swap


@defect(
    "``gelu`` is its tanh approximation, and three per cent more, where it is given a low dtype",
    caught_by="gradients/test_whole_check.py::test_a_network_has_no_findings[cpu-bf16-mlp]",
)
def gelu_has_a_low_branch() -> None:
    from torch.nn import functional

    def gelu(x: Any, approximate: str = "none") -> Any:
        if x.dtype in (torch.bfloat16, torch.float16):
            return original(x, approximate="tanh") * 1.03
        return original(x, approximate=approximate)

    original = swap(functional, "gelu", gelu)


@defect(
    "``scale`` multiplies the first loss of an iteration, and returns each later one as it is",
    caught_by="scaler/test_training_steps.py::test_two_losses_of_a_step_are_both_scaled[cpu-bf16]",
)
def scales_one_loss_of_an_iteration() -> None:
    def scale(self: Any, outputs: Any) -> Any:
        if getattr(self, "has_scaled_one", False):
            return outputs
        self.has_scaled_one = True
        return original_scale(self, outputs)

    def update(self: Any, new_scale: Any = None) -> None:
        self.has_scaled_one = False
        original_update(self, new_scale)

    original_scale = swap(torch.amp.GradScaler, "scale", scale)
    original_update = swap(torch.amp.GradScaler, "update", update)
