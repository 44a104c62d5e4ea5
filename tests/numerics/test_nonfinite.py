"""Non-finite values are reported with the operator that creates them, its module, its line and the reason."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module
from torch.utils.checkpoint import checkpoint

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, predicted
from pytest_amp.numerics.nonfinite import NotFinite, Origin, origin_in_step
from pytest_amp.numerics.oracle.module_places import Direction
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.planted import broken, with_gradient
from tests.numerics.test_check_gradients import run

CPU = find_device("cpu")
Loss = Callable[[nn.Module, Tensor], Tensor]


def line(mark: str) -> str:
    """Return the place of the line of this file that ends in a comment with ``mark``."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = (index for index, text in enumerate(lines, start=1) if text.endswith(f"# {mark}"))
    return f"test_nonfinite.py:{number}"


def wide(x: Tensor) -> Tensor:
    """Return float32, or the float64 of the exact step."""
    return x if x.dtype == torch.float64 else x.float()


def rows_with_zeros() -> Tensor:
    """Return a batch with one row of zeros."""
    rows = torch.randn(6, 8)
    rows[2] = 0
    return rows


def case(loss: Loss, batch: Callable[[], Tensor] = rows_with_zeros, bias: bool = False) -> Case:  # noqa: FBT001, FBT002
    """Return a linear layer, whose output for a zero row is zero, and a loss."""
    return Case("planted", lambda: nn.Sequential(nn.Linear(8, 8, bias=bias)), batch, loss)


def origin(result: Case, precision: Precision = FP16, **options: Any) -> Origin | None:
    return origin_in_step(
        result,
        result.realise(seed=0),
        CPU.torch_device,
        lambda: CPU.autocast(precision.dtype),
        seed=0,
        **options,
    )


def quotient(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    return wide(y / (y.abs().amax(-1, keepdim=True) + 1e-9)).square().mean()  # quotient


def bounded(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    lengths = y.abs().sum(-1, keepdim=True).clamp(min=2e-9)  # bound
    return wide(y / lengths).square().mean()  # bounded


def guarded_root(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    lengths = (y.square().sum(-1, keepdim=True, dtype=y.dtype) + 1e-9).sqrt()  # guard
    return wide(y * lengths.reciprocal()).square().mean()  # reciprocal


def logarithm(model: nn.Module, x: Tensor) -> Tensor:
    chances = (model(x) * 100).softmax(-1).to(model(x).dtype)
    return -wide(torch.log(chances + 1e-10)).mean()  # logarithm


def tensor_epsilon(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    return wide(y / torch.maximum(y.abs().sum(-1, keepdim=True), torch.tensor(1e-9))).sum()  # tensor


def masked(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    mask = (x == 0).to(y.dtype) * -1e8  # mask
    return wide((y + mask).softmax(-1)).square().mean()


def exponential(model: nn.Module, x: Tensor) -> Tensor:
    return wide((model(x) * 0 + 12).exp()).mean()  # exponential


def in_place(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x) * 0 + 300
    y.mul_(300)  # in place
    return wide(y).mean()


PLANTED: dict[str, tuple[Loss, str, str, str, str]] = {
    "an epsilon in a quotient": (quotient, "div", "quotient", r"0 / 0 in 8 of 48 .* 1e-09 is 0 in float16", "add at"),
    "an epsilon in a bound": (bounded, "div", "bounded", r"0 / 0 in 8 of 48 .* 2e-09 is 0 in float16", "clamp at"),
    "an epsilon in a root": (
        guarded_root,
        "reciprocal",
        "reciprocal",
        r"reciprocal of 0 in 1 of 6 .* 1e-09 is 0 in float16",
        "add at",
    ),
    "an epsilon in a logarithm": (
        logarithm,
        "log",
        "logarithm",
        r"log of 0 in \d+ of 48 .* 1e-10 is 0 in float16",
        "an epsilon of 1e-10",
    ),
    "an epsilon in a tensor": (tensor_epsilon, "div", "tensor", r"0 / 0 .* 1e-09 is 0 in float16", "maximum at"),
    "a mask": (
        masked,
        "mul",
        "mask",
        r"-1e\+08 is -inf in float16 \(8 of 48",
        "beyond the largest float16, 65504; take torch.finfo",
    ),
    "an exponential": (
        exponential,
        "exp",
        "exponential",
        r"overflow: up to 1.63e\+05 in 48 of 48",
        "float16 ends at 65504",
    ),
    "a product in place": (in_place, "mul", "in place", r"overflow: up to 9e\+04 in 48 of 48", "ends at 65504"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_operator_line_and_reason_are_named(name: str) -> None:
    loss, operator, mark, what, why = PLANTED[name]
    actual = origin(case(loss))
    assert actual is not None
    assert (actual.operator, actual.module, actual.direction) == (operator, "the loss", Direction.FORWARD)
    assert actual.line == f"tests/numerics/{line(mark)}"
    assert re.search(what, actual.event), actual.event
    assert why in actual.likely
    assert origin(case(loss), BF16) is None


def test_failure_and_trace_name_the_origin() -> None:
    with pytest.raises(AmpFailure, match="planted is not finite in fp16 on cpu, with manual casts, too") as raised:
        run(case(quotient), precision=FP16)
    text = str(raised.value)
    assert f"div in the loss, forward pass, at tests/numerics/{line('quotient')}: 0 / 0" in text
    assert "an epsilon of 1e-09" in text
    trace = predicted.trace(case(quotient), Conditions(CPU, FP16))
    assert trace.rows[-1].operator == "aten::div.Tensor"
    assert "ends where the step is no longer finite: div in the loss" in str(trace)


def test_trace_of_a_finite_step_is_complete() -> None:
    trace = predicted.trace(case(quotient), Conditions(CPU, BF16))
    assert trace.rows[-1].direction == "backward"
    assert "no longer finite" not in str(trace)


def test_backward_operator_has_the_line_of_its_forward_pass() -> None:
    def steep(model: nn.Module, x: Tensor) -> Tensor:
        return wide(model(x)).mul(1e9).sum()  # steep

    actual = origin(case(steep))
    assert actual is not None
    assert actual.operator == "cast (of ToCopy)"
    assert actual.direction is Direction.BACKWARD
    assert "overflow: up to 1e+09" in actual.event
    trace = predicted.trace(case(steep), Conditions(CPU, FP16))
    assert trace.rows[-1].direction == "backward"
    assert trace.rows[-1].operator == "aten::_to_copy"


class Root(nn.Module):
    """Square root, whose derivative at zero is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute in float32."""
        return wide(x).square().sqrt()  # root


def test_step_that_is_not_finite_in_float32_is_explained() -> None:
    result = Case(
        "root",
        lambda: nn.Sequential(nn.Linear(8, 8, bias=False), Root()),
        lambda: torch.zeros(3, 8),
        lambda m, x: m(x).sum(),
    )
    with pytest.raises(AmpFailure, match="root is not finite in float32, without autocast") as raised:
        run(result)
    assert f"div (of Sqrt) in 1 (Root), backward pass, at tests/numerics/{line('root')}" in str(raised.value)
    assert "a quotient by 0" in str(raised.value)
    assert "x.float()" not in str(raised.value)


def test_infinities_shared_with_float32_are_not_the_origin() -> None:
    def hidden(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        chances = y.masked_fill(torch.eye(6, 8, dtype=torch.bool), -torch.inf).softmax(-1)
        logs = torch.log(torch.zeros(1)).exp()
        return wide((chances * 0 + 12).to(y.dtype).exp()).mean() + logs.sum()  # late

    actual = origin(case(hidden))
    assert actual is not None
    assert (actual.operator, actual.line) == ("exp", f"tests/numerics/{line('late')}")


def test_overflow_that_becomes_finite_is_reported_only_on_request() -> None:
    def normed(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) * 0 + 300
        return wide(y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-3).to(y.dtype)).mean()  # square

    assert origin(case(normed)) is None
    actual = origin(case(normed), hidden=True)
    assert actual is not None
    assert (actual.operator, actual.line) == ("mul", f"tests/numerics/{line('square')}")
    assert origin(case(normed), BF16, hidden=True) is None


class Steep(torch.autograd.Function):
    """Custom function whose backward pass in Python overflows."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        """Return the input."""
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        """Return a gradient too large for float16."""
        return gradient * 0 + (gradient * 0 + 300) * 300  # custom


def test_backward_pass_in_python_has_its_own_line() -> None:
    actual = origin(case(lambda model, x: wide(Steep.apply(model(x))).mean()))  # type: ignore[no-untyped-call]
    assert actual is not None
    assert (actual.operator, actual.line) == ("mul (of Steep)", f"tests/numerics/{line('custom')}")


class Recomputed(nn.Module):
    """Checkpoint around an overflow in its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Recompute in backward."""
        result: Tensor = checkpoint(self.part, x, use_reentrant=False)
        return result

    def part(self, x: Tensor) -> Tensor:
        """Compute a product with a gradient beyond float16."""
        return wide(self.linear(x)) * 1e9  # recomputed


def test_overflow_in_a_checkpoint_has_its_direction_and_module() -> None:
    actual = origin(Case("recomputed", Recomputed, lambda: torch.randn(4, 8), lambda m, x: m(x).mean()))
    assert actual is not None
    assert actual.direction is Direction.BACKWARD
    assert actual.module == "the model (Recomputed)"


class Refusing(nn.Module):
    """Model that raises at a non-finite value."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute exponentials."""
        y = (x * 0 + 12).exp()  # refused
        if not y.isfinite().all():
            raise ValueError("not finite")
        return wide(y)


def test_model_that_raises_at_an_infinity_has_an_origin() -> None:
    result = Case(
        "refusing",
        lambda: nn.Sequential(nn.Linear(8, 8), Refusing()),
        lambda: torch.randn(4, 8),
        lambda model, x: model(x).mean(),
    )
    actual = origin(result)
    assert actual is not None
    assert (actual.module, actual.line) == ("1 (Refusing)", f"tests/numerics/{line('refused')}")


def test_infinity_that_only_autocast_makes_is_named() -> None:
    result = Case(
        "broken", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), lambda m, x: torch.relu(m(x)).float().sum()
    )
    with pytest.raises(AmpFailure, match="is not finite") as raised:
        run(result, broken("relu", with_gradient(lambda gradient: gradient / 0)), precision=BF16)
    assert re.search(r"likely +div \(of \w+\) in the loss, backward pass, .* a quotient by 0", str(raised.value))


def test_unwritten_memory_is_no_origin() -> None:
    """Values of ``empty`` are arbitrary."""

    def unwritten(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        buffer = torch.empty_like(y)
        with torch.no_grad():
            buffer.view(torch.int16).fill_(0x7E00)  # the bits of NaN, as memory may have them
        buffer = torch.empty_like(buffer).copy_(y)
        return wide(buffer).exp().mean()

    assert origin(case(unwritten)) is None


def test_run_leaves_no_hooks() -> None:
    before = len(module._global_forward_hooks), len(module._global_forward_pre_hooks)
    with contextlib.suppress(AmpFailure):
        run(case(quotient), precision=FP16)
    assert (len(module._global_forward_hooks), len(module._global_forward_pre_hooks)) == before


def test_trace_receives_the_failure_that_it_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that is caught, but not received, makes a passing test red."""
    received: list[BaseException] = []
    monkeypatch.setattr(predicted, "receive", received.append)
    predicted.trace(case(quotient), Conditions(CPU, FP16))
    assert [type(failure) for failure in received] == [NotFinite]
