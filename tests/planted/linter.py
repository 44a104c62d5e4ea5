"""Planted defects that give a right model or step a finding, or hide a wrong one from the linter and ``amp.check``."""

from __future__ import annotations

from typing import Any

import torch

from tests.planted.kernels import override
from tests.planted.table import defect, swap


@defect(
    "A region of autocast leaves autocast as it was, as where somebody returns early from ``__enter__``",
    caught_by="tests/lint/test_regions.py::test_right_step_yields_no_finding[usual_step-bf16]",
    not_on_cuda="the linter's tests run on a CPU",
)
def regions_are_never_entered() -> None:
    def without_effect(self: Any) -> Any:
        enabled = torch.is_autocast_enabled(self.device)
        result = original(self)
        torch.set_autocast_enabled(self.device, enabled)
        return result

    original = swap(torch.autocast, "__enter__", without_effect)


@defect(
    "``Tensor.float()`` returns low-precision tensors as they are",
    caught_by="tests/lint/test_arithmetic.py::test_right_form_yields_no_finding[layer norm-bf16]",
    not_on_cuda="the linter's tests run on a CPU",
)
def float_keeps_low_values() -> None:
    def as_it_is(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self if self.dtype in (torch.bfloat16, torch.float16) else original(self, *args, **kwargs)

    original = swap(torch.Tensor, "float", as_it_is)


@defect(
    "``cross_entropy`` under autocast computes in float32, and returns the autocast dtype",
    caught_by="tests/lint/test_arithmetic.py::test_losses_of_torch_yield_no_finding",
    not_on_cuda="the linter's tests run on a CPU",
)
def cross_entropy_returns_its_logits_dtype() -> None:
    override("cross_entropy_loss", lambda call: call.run().to(call.low))


@defect(
    "SGD keeps its momentum in bfloat16 between steps, and computes with it in float32",
    caught_by="tests/lint/test_state.py::test_other_optimizers_yield_no_finding[SGD-bf16]",
    not_on_cuda="the linter's tests run on a CPU",
)
def sgd_keeps_its_momentum_low() -> None:
    def cast(optimizer: Any, dtype: torch.dtype) -> None:
        for state in optimizer.state.values():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"] = state["momentum_buffer"].to(dtype)

    def step_in_float32(self: Any, closure: Any = None) -> Any:
        cast(self, torch.float32)
        result = original(self, closure)
        cast(self, torch.bfloat16)
        return result

    original = swap(torch.optim.SGD, "step", step_in_float32)


@defect(
    "A ``TorchFunctionMode`` is entered without effect: nothing tells a cast of the program from one of autocast",
    caught_by="tests/lint/test_casts.py::test_cast_of_the_input_is_found[half-bf16]",
    not_on_cuda="the linter's tests run on a CPU",
)
def function_modes_are_blind() -> None:
    from torch.overrides import TorchFunctionMode

    swap(TorchFunctionMode, "__enter__", lambda self: self)
    swap(TorchFunctionMode, "__exit__", lambda *_: None)


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
