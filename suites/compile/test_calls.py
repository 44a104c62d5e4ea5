"""Calls of compiled code in every form (evaluation, keywords, pytrees) follow the region as eager does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from .programs import ambient

# One dtype is enough: how a call passes its arguments does not depend on it, and test_ambient.py changes the dtype.
pytestmark = pytest.mark.amp(dtypes=["bf16"])


class Pair(NamedTuple):
    """Tree of tensors."""

    left: torch.Tensor
    right: torch.Tensor


class Called(nn.Module):
    """Network with several ways to receive its inputs."""

    def __init__(self) -> None:
        """Create two layers, and a dropout that evaluation leaves out."""
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(16, 24), nn.Dropout(0.5), nn.Linear(24, 8)

    def forward(
        self, x: torch.Tensor | None = None, *, extra_argument: torch.Tensor | None = None, nested: Any = None
    ) -> torch.Tensor:
        """Shapes: (rows, 16) for each input, to (rows, 8)."""
        for extra in [extra_argument, *(nested.values() if isinstance(nested, dict) else nested or ())]:
            if extra is not None:
                x = extra if x is None else x + extra
        assert x is not None
        result: torch.Tensor = self.second(self.dropout(torch.tanh(self.first(x))))
        return result


Call = Callable[[Any, torch.Tensor], torch.Tensor]

CALLS: dict[str, Call] = {
    "by position": lambda f, x: f(x),
    "by keyword": lambda f, x: f(x=x),
    "by position and keyword": lambda f, x: f(x, extra_argument=2 * x),
    "keywords only": lambda f, x: f(extra_argument=x),
    "a list": lambda f, x: f(x, nested=[x, 2 * x]),
    "a dictionary": lambda f, x: f(nested={"a": x, "b": -2 * x}),
    "a named tuple": lambda f, x: f(nested=Pair(x, 2 * x)),
}


def _function(model: nn.Module, **options: Any) -> Any:
    @torch.compile(**options)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return decorated


def _in_place(model: nn.Module, **options: Any) -> Any:
    model.compile(**options)
    return model


#: Compiled parts of a model.
COMPILED: dict[str, Callable[..., Any]] = {
    "module": torch.compile,
    "module.compile()": _in_place,
    "decorated function": _function,
    "partial": lambda model, **options: torch.compile(functools.partial(model, extra_argument=None), **options),
}

MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def _model(amp: SuiteAmp) -> Called:
    torch.manual_seed(amp.config.seed)
    return Called().to(amp.device.torch_device).eval()


def _expect_eager(amp: SuiteAmp, what: str, actual: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> None:
    """Compare bit for bit: AOTAutograd calls eager's kernels, on the same shapes."""
    for index, (result, expected) in enumerate(zip(actual, eager, strict=True)):
        if result.dtype is not expected.dtype or not torch.equal(result, expected):
            error = float((result.double() - expected.double()).abs().max())
            raise AmpFailure(
                f"{what} on {amp.target.id} differs from eager",
                label_before="eager",
                before=dtype_name(expected.dtype),
                now=f"{dtype_name(result.dtype)}, error {error:.3g} in tensor {index}, on torch {torch.__version__}",
                likely="this kind of call loses the region, or casts its arguments",
            )


@pytest.mark.parametrize("compiled", COMPILED)
def test_evaluation_follows_the_region(amp: SuiteAmp, compiled: str) -> None:
    """Evaluation in each grad mode, in a region and in a disabled one, is bitwise equal to eager."""
    model, eager = _model(amp), _model(amp)
    compiled_model = COMPILED[compiled](model, backend="aot_eager")
    x = torch.randn(4, 16, device=amp.device.torch_device)
    for mode, entered in MODES.items():
        for kind in ("low", "disabled"):
            with entered(), ambient(amp, kind):
                actual, expected = compiled_model(x), eager(x)
            _expect_eager(amp, f"a compiled {compiled} in evaluation, {mode}, {kind}", [actual], [expected])


@pytest.mark.parametrize(
    ("compiled", "call"), [*(("module", call) for call in CALLS), ("decorated function", "by position and keyword")]
)
def test_calls_of_every_form_follow_the_region(amp: SuiteAmp, compiled: str, call: str) -> None:
    """Outputs and gradients of a training step are those of eager."""
    model, eager = _model(amp), _model(amp)
    compiled_model = COMPILED[compiled](model, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 16, device=amp.device.torch_device)
    with ambient(amp, "low"):
        actual, expected = CALLS[call](compiled_model, x), CALLS[call](eager, x)
    for result in (actual, expected):
        torch.autograd.backward(result.float().square().sum())
    gradients = [[p.grad for p in network.parameters() if p.grad is not None] for network in (model, eager)]
    _expect_eager(amp, f"a compiled {compiled}, called with {call}", [actual, *gradients[0]], [expected, *gradients[1]])


def test_what_no_rule_casts_keeps_every_bit(amp: SuiteAmp, needs: Callable[[str], str]) -> None:
    """Sums, choices and scalings by inductor, of inputs without gradients, are exact in the dtype of each input."""

    def function(x: torch.Tensor, y: torch.Tensor, *, z: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, x + y, torch.where(x > y, x, y), z - 1, x.t().contiguous(), torch.cat([x, y]) * 0.5]

    torch.manual_seed(amp.config.seed)
    x, y, z = (torch.randn(24, 24, device=amp.device.torch_device) for _ in range(3))
    compiled = torch.compile(function, backend=needs("inductor"), fullgraph=True)
    arguments = x, y, z.double()
    with ambient(amp, "low"):
        actual, expected = (call(arguments[0], arguments[1], z=arguments[2]) for call in (compiled, function))
    _expect_eager(amp, "what autocast leaves alone, compiled by inductor,", actual, expected)
