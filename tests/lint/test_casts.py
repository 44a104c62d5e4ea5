"""Casts, constants and autograd functions of the user's program, together with the correct form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.lint import Severity
from tests.lint.linted import (
    HIDDEN,
    INPUTS,
    OUTPUTS,
    Around,
    around,
    case,
    kinds,
    line_of,
    network,
    of_case,
    of_step,
    samples,
    update,
)

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


class Before(nn.Module):
    """Function of the input, before the network."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.function = network(), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.network(self.function(x))
        return result


@BOTH
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.half(),
        lambda x: x.bfloat16(),
        lambda x: x.to(torch.float16),
        lambda x: x.type(torch.bfloat16),
        lambda x: x.to(dtype=torch.bfloat16),
    ],
    ids=["half", "bfloat16", "to", "type", "to by keyword"],
)
def test_cast_of_the_input_is_found(function: Callable[[Tensor], Tensor], dtype: str) -> None:
    (finding,) = of_case(case(lambda: Before(function)), dtype)
    assert finding.kind == "own-cast"
    assert finding.site == f"tests/lint/test_casts.py:{line_of(function)}"
    assert "input x" in finding.message


@BOTH
def test_cast_to_the_dtype_of_another_tensor_yields_no_finding(dtype: str) -> None:
    def wide_inside(x: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), (HIDDEN,)).to(x.dtype)

    assert of_case(around(wide_inside), dtype) == ()
    assert of_case(case(lambda: Before(lambda x: x.to(x.dtype))), dtype) == ()


class FrozenBase(nn.Module):
    """Frozen low-precision layer that receives its own dtype, and a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(INPUTS, HIDDEN).bfloat16(), nn.Linear(HIDDEN, OUTPUTS)
        self.base.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.base(x.to(self.base.weight.dtype)).to(x.dtype).tanh())
        return result


@BOTH
def test_frozen_low_base_yields_no_finding(dtype: str) -> None:
    assert of_case(case(FrozenBase), dtype) == ()


@BOTH
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.float(),
        lambda x: functional.gelu(x.float()),
        lambda x: torch.relu(x.float()).to(x.dtype),
    ],
    ids=["nothing", "gelu", "relu"],
)
def test_useless_widening_is_found(function: Callable[[Tensor], Tensor], dtype: str) -> None:
    (finding,) = of_case(around(function), dtype)
    assert finding.kind == "useless-widening"
    assert finding.severity is Severity.WARNING


@BOTH
def test_widening_for_several_operators_yields_no_finding(dtype: str) -> None:
    assert of_case(around(lambda x: functional.gelu(x.float()) * 0.3), dtype) == ()


@BOTH
def test_rounded_constant_is_found(dtype: str) -> None:
    def rounded(x: Tensor) -> Tensor:
        scale = torch.linspace(0.5, 1.5, HIDDEN)
        return x.float() * scale.to(x.dtype).float()

    (finding,) = of_case(around(rounded), dtype)
    assert finding.kind == "rounded-values"
    assert finding.site == f"tests/lint/test_casts.py:{line_of(rounded, 2)}"


class Scaled(nn.Module):
    """Network whose hidden features are multiplied by a buffer."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, HIDDEN).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.leave(self.enter(x).float() * self.get_buffer("scale").float())
        return result


@BOTH
def test_rounded_buffer_is_found_in_the_line_that_rounds_it(dtype: str) -> None:
    (finding,) = of_case(case(lambda: Scaled(torch.bfloat16)), dtype)
    assert finding.kind == "rounded-buffer"
    assert "buffer scale" in finding.message
    assert finding.site == f"tests/lint/test_casts.py:{line_of(Scaled.__init__, 3)}"
    assert of_case(case(lambda: Scaled(torch.float32)), dtype) == ()


GUARDS = {
    "add": lambda x: x / (x.abs().amax(1, keepdim=True) + 1e-9),
    "clamp": lambda x: x / x.abs().amax(1, keepdim=True).clamp(min=1e-10),
    "tensor": lambda x: x / (x.abs().amax(1, keepdim=True) + torch.tensor(1e-9, dtype=x.dtype)),
    "normalize": lambda x: functional.normalize(x, dim=1),
}


@pytest.mark.parametrize("name", GUARDS)
def test_epsilon_that_vanishes_is_found(name: str) -> None:
    (finding,) = of_case(around(GUARDS[name]), "fp16")
    assert finding.kind == "vanished-epsilon"
    assert finding.severity is Severity.WARNING
    assert any(f"1e-{size}" in finding.message for size in (9, 10, 12))
    assert "is 0 in float16" in finding.message
    assert of_case(around(GUARDS[name]), "bf16") == ()


@BOTH
def test_bound_that_rounds_to_one_is_found(dtype: str) -> None:
    (finding,) = of_case(around(lambda x: x.sigmoid().clamp(0.001, 1 - 1e-6)), dtype)
    assert finding.kind == "vanished-epsilon"
    assert "is 1 in" in finding.message


def test_epsilon_that_leaves_a_step_infinite_is_an_error() -> None:
    def direction(x: Tensor) -> Tensor:
        x = x * torch.ones(len(x), 1, dtype=x.dtype).index_fill(0, torch.tensor(2), 0)
        return x / (x.abs().sum(1, keepdim=True) + 1e-9)

    actual = of_case(around(direction), "fp16")
    assert [(finding.kind, finding.severity) for finding in actual] == [("vanished-epsilon", Severity.ERROR)]


def hidden(x: Tensor, value: float) -> Tensor:
    mask = (x < 0).to(x.dtype) * value
    return (x + mask).softmax(1)


def test_mask_beyond_the_range_is_found_in_its_line() -> None:
    (finding,) = of_case(around(lambda x: hidden(x, -1e9)), "fp16")
    assert finding.kind == "constant-out-of-range"
    assert "-1e9" in finding.message
    assert finding.site == f"tests/lint/test_casts.py:{line_of(hidden, 1)}"
    assert of_case(around(lambda x: hidden(x, -1e4)), "fp16") == ()
    assert of_case(around(lambda x: hidden(x, -1e9)), "bf16") == ()


def test_mask_of_infinity_yields_no_finding() -> None:
    assert of_case(around(lambda x: x.masked_fill(x < -1, float("-inf")).softmax(1)), "fp16") == ()


@pytest.mark.parametrize(("below", "severity"), [(0.0, Severity.WARNING), (float("inf"), Severity.ERROR)])
def test_mask_that_overflows_in_a_cast_is_an_error_if_a_row_has_it_whole(below: float, severity: Severity) -> None:
    (finding,) = of_case(around(lambda x: (x + ((x < below).float() * -1e9).to(x.dtype)).softmax(1)), "fp16")
    assert (finding.kind, finding.severity) == ("overflow", severity)


def inverse_degrees(x: Tensor, scale: float) -> Tensor:
    """Return features divided by row sums; rows of a zero sum, of which there are three, are left out."""
    degrees = (x[:, :1] > -10).to(x.dtype)
    degrees[:3] = 0
    inverse = 1 / (degrees * scale)
    return x * inverse.masked_fill(inverse.isinf(), 0).clamp(max=1)


def test_division_by_zero_that_is_infinite_in_float32_is_no_overflow() -> None:
    for dtype in ("bf16", "fp16"):
        assert of_case(around(lambda x: inverse_degrees(x, 1)), dtype) == ()


def test_division_that_is_infinite_in_more_places_than_in_float32_is_an_overflow() -> None:
    (finding,) = of_case(around(lambda x: inverse_degrees(x, 1e-6)), "fp16")
    assert (finding.kind, finding.severity) == ("overflow", Severity.ERROR)


def least(x: Tensor, rows: Tensor) -> Tensor:
    mask = torch.zeros(len(x), x.shape[1]).masked_fill(rows, torch.finfo(torch.float32).min)
    return (x + mask.to(x.dtype)).softmax(1)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mask_of_the_least_float32_that_is_infinite_in_a_cast_is_a_constant(dtype: str) -> None:
    """It is meant as minus infinity, and is harmless unless a whole row has it."""
    (finding,) = of_case(around(lambda x: least(x, x < 0)), dtype)
    assert (finding.kind, finding.severity) == ("constant-out-of-range", Severity.WARNING)
    assert "-3.40282e38 (cast) is -inf" in finding.message
    assert finding.site == f"tests/lint/test_casts.py:{line_of(least, 2)}"
    (finding,) = of_case(around(lambda x: least(x, torch.ones_like(x, dtype=torch.bool))), dtype)
    assert (finding.kind, finding.severity) == ("constant-out-of-range", Severity.ERROR)


class _Gain(torch.autograd.Function):
    """Product with a gain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain)
        return x * gain


class RoundedGain(_Gain):
    """Product that rounds its inputs before it computes."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, gain = ctx.saved_tensors
        gradient = gradient.to(torch.bfloat16)
        return gradient * gain.to(torch.bfloat16), (gradient * x.to(torch.bfloat16)).sum(0)


class WideGain(_Gain):
    """Product in float32, which returns the dtypes of its inputs."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, gain = ctx.saved_tensors
        return (gradient.float() * gain).to(x.dtype), (gradient.float() * x.float()).sum(0)


class Gained(nn.Module):
    """Network with a gain by an autograd function, of float32 features unless they should stay low-precision."""

    def __init__(self, function: type[torch.autograd.Function], *, widens: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)
        self.gain, self.function, self.widens = nn.Parameter(torch.rand(HIDDEN) + 0.5), function, widens

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).tanh()
        apply: Any = self.function.apply
        result: Tensor = self.leave(apply(x.float() if self.widens else x, self.gain))
        return result


@BOTH
def test_backward_pass_that_rounds_is_found(dtype: str) -> None:
    (finding,) = of_case(case(lambda: Gained(RoundedGain, widens=True)), dtype)
    assert finding.kind == "backward-rounds"
    assert "RoundedGain" in finding.message
    assert finding.site == f"tests/lint/test_casts.py:{line_of(RoundedGain.backward, 3)}"


@BOTH
@pytest.mark.parametrize("widens", [True, False])
def test_backward_pass_in_the_dtypes_of_forward_yields_no_finding(dtype: str, *, widens: bool) -> None:
    assert of_case(case(lambda: Gained(WideGain, widens=widens)), dtype) == ()


@BOTH
def test_hook_that_rounds_a_gradient_is_found(dtype: str) -> None:
    def watched(x: Tensor) -> Tensor:
        x = x.float() * 0.3
        if x.requires_grad:
            hooked: Any = x
            hooked.register_hook(lambda gradient: gradient.bfloat16().float())
        return x

    (finding,) = of_case(around(watched), dtype)
    assert finding.kind == "backward-rounds"
    assert finding.site == f"tests/lint/test_casts.py:{line_of(watched, 4)}"


@BOTH
def test_rounded_values_are_found(dtype: str) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        expected = batch["x"][:, :3].bfloat16()
        return functional.mse_loss(model(batch["x"]).float(), expected.float())

    (finding,) = of_case(case(loss=loss), dtype)
    assert finding.kind == "rounded-values"
    assert finding.site == f"tests/lint/test_casts.py:{line_of(loss, 1)}"


@BOTH
def test_cast_of_the_batch_in_a_step_is_found(dtype: str) -> None:
    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            scores = iteration.model(iteration.batch["x"].half())
            loss = functional.cross_entropy(scores, iteration.batch["target"])
        update(iteration, loss)

    (finding,) = of_step(train, dtype)
    assert finding.kind == "own-cast"
    assert finding.site == f"tests/lint/test_casts.py:{line_of(train, 3)}"


@BOTH
def test_hook_of_a_parameter_that_rounds_its_gradient_is_found(dtype: str) -> None:
    def build() -> nn.Module:
        model = network()
        untyped: Any = model
        untyped[0].weight.register_hook(lambda gradient: gradient.bfloat16().float())
        return model

    (finding,) = of_case(case(build), dtype)
    assert finding.kind == "backward-rounds"
    assert finding.site == f"tests/lint/test_casts.py:{line_of(build, 3)}"


def test_exception_of_the_model_passes_through() -> None:
    def refuse(x: Tensor) -> Tensor:
        raise KeyError(f"no such head for {len(x)}")

    with pytest.raises(KeyError, match="no such head"):
        of_case(around(refuse))


def test_linter_restores_autocast_after_user_code() -> None:
    def leave_on(x: Tensor) -> Tensor:
        torch.set_autocast_enabled("cpu", True)  # noqa: FBT003  # it has no keyword
        return x

    of_case(case(lambda: Around(leave_on)))
    assert not torch.is_autocast_enabled("cpu")
    assert kinds(of_case(case())) == []
    assert samples()["x"].dtype is torch.float32
