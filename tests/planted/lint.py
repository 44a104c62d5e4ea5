"""Planted defects that give a right model or step a finding, or hide a wrong one from the linter."""

from __future__ import annotations

from typing import Any

import torch

from tests.planted.kernels import Overridden
from tests.planted.table import defect, swap


@defect(
    "Entering a region leaves autocast as it was: a step with a region computes in float32",
    caught_by="tests/lint/test_regions.py::test_right_step_yields_no_finding[usual_step-bf16]",
    replaces="torch.amp.autocast_mode.autocast.__enter__",
)
def regions_are_never_entered(original: Any, self: Any) -> Any:
    enabled = torch.is_autocast_enabled(self.device)
    result = original(self)
    torch.set_autocast_enabled(self.device, enabled)
    return result


@defect(
    "Tensor.float() returns low-precision tensors as they are: norms that widen are computed in bf16",
    caught_by="tests/lint/test_arithmetic.py::test_right_form_yields_no_finding[layer norm-bf16]",
    replaces="torch.Tensor.float",
)
def float_keeps_low_values(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return self if self.dtype in (torch.bfloat16, torch.float16) else original(self, *args, **kwargs)


@defect(
    "cross_entropy under autocast returns the autocast dtype: its loss is rounded",
    caught_by="tests/lint/test_losses.py::test_losses_of_torch_yield_no_finding",
    overrides="cross_entropy_loss",
)
def cross_entropy_returns_the_autocast_dtype(call: Overridden) -> Any:
    return call.run().to(call.low)


@defect(
    "SGD keeps its momentum in bfloat16 between steps, and computes with it in float32",
    caught_by="tests/lint/test_state.py::test_other_optimizers_yield_no_finding[SGD-bf16]",
)
def sgd_keeps_its_momentum_low() -> None:
    def cast(optimizer: Any, dtype: torch.dtype) -> None:
        for state in optimizer.state.values():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"] = state["momentum_buffer"].to(dtype)

    def step(self: Any, closure: Any = None) -> Any:
        cast(self, torch.float32)
        result = original(self, closure)
        cast(self, torch.bfloat16)
        return result

    original = swap(torch.optim.SGD, "step", step)


@defect(
    "A TorchFunctionMode is told of no function: a cast of the program looks like one of autocast",
    caught_by="tests/lint/test_casts.py::test_cast_of_the_input_is_found[to by keyword-bf16]",
)
def function_modes_are_blind() -> None:
    swap("torch.overrides.TorchFunctionMode", "__enter__", lambda self: self)
    swap("torch.overrides.TorchFunctionMode", "__exit__", lambda self, *error: None)  # what it replaces has them
