"""``trace`` returns a table of operators: where each is, its arguments, and its rounding."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.cases import Case, cnn, mlp, wider_zoo
from pytest_amp.devices import Device, find_device
from pytest_amp.numerics.oracle import Row, Trace, observed_step, trace_of, verdict
from pytest_amp.numerics.oracle.module_places import Direction, Places
from pytest_amp.numerics.oracle.observer import Observer
from tests.numerics.planted import broken

CPU = find_device("cpu")


def traced(case: Case, device: Device = CPU, dtype: torch.dtype = torch.bfloat16) -> Trace:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return trace_of(case.name, observed_step(case, device, dtype, seed=0), "cpu")
    finally:
        torch.set_num_threads(threads)


def rows(trace: Trace, operator: str, direction: str) -> list[Row]:
    return [row for row in trace if row.operator == f"aten::{operator}" and row.direction == direction]


def test_rows_name_module_rule_dtypes_and_model() -> None:
    trace = traced(mlp())
    first = rows(trace, "addmm", "forward")[0]
    assert (first.module, first.rule, first.model) == ("0", "aten::linear: lower_precision_fp", "once")
    assert (first.given, first.returned) == (("bfloat16",) * 3, ("bfloat16",))
    assert first.share > 0.999
    (norm,) = rows(trace, "native_layer_norm_backward", "backward")
    assert (norm.module, norm.model, norm.hollow) == ("3", "running_sum", True)
    (tanh,) = rows(trace, "tanh_backward", "backward")
    assert (tanh.module, tanh.model) == ("1", "saved_output")
    assert [row.module for row in rows(trace, "mm", "backward")] == ["5", "2", "0"]
    (loss,) = rows(trace, "_log_softmax", "forward")
    assert (loss.module, loss.rule, loss.given) == ("", "aten::cross_entropy_loss: fp32", ("float32",))


def test_trace_prints_as_a_table() -> None:
    lines = str(traced(mlp())).splitlines()
    assert lines[0] == "mlp"
    assert lines[1].split() == ["module", "pass", "operator", "dtypes", "rule", "model", "calls", "equal", "error"]
    assert any(line.split()[:3] == ["1", "backward", "tanh_backward"] for line in lines)
    assert any(line.endswith("hollow") for line in lines)
    assert max(map(len, lines)) < 200


def test_updated_statistics_are_listed_as_results() -> None:
    trace = traced(cnn())
    norm = rows(trace, "native_batch_norm", "forward")[0]
    assert norm.returned == ("bfloat16", "float32", "float32", "float32", "float32")
    assert not norm.hollow
    assert norm.share > 0.999


def test_shares_are_summarized_by_operator() -> None:
    shares = traced(mlp()).signatures()
    assert shares["addmm/forward"] > 0.999
    assert shares["mm/backward"] > 0.999
    assert shares["tanh_backward/backward"] == 1.0


@pytest.mark.parametrize("name", ["addmm", "gelu"])
def test_kernel_that_rounds_twice_has_the_lowest_share(name: str) -> None:
    """Plant a second rounding to fewer bits, below autocast, where no comparison of dtypes detects it."""
    untyped: Any = torch.library
    library = untyped.Library("aten", "IMPL")
    overload = getattr(torch.ops.aten, name).default
    kernel = torch.library.get_kernel(overload, "CPU") if hasattr(torch.library, "get_kernel") else None
    if kernel is None:
        pytest.skip("this torch has no get_kernel")

    def coarse(keys: Any, *args: Any, **kwargs: Any) -> Any:
        result = kernel.call_boxed(keys, *args, **kwargs)
        return (
            (result * 1.0001).to(torch.bfloat16).to(result.dtype) if result.dtype == torch.bfloat16 else result * 1.001
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is a kernel already
        library.impl(name, coarse, "CPU", with_keyset=True)
    try:
        trace = traced(mlp())
    finally:
        library._destroy()
    (worst, *_) = sorted(trace, key=lambda row: row.share)
    assert worst.operator == f"aten::{name}"
    assert worst.share < 0.98


def test_operator_is_traced_with_the_dtypes_it_receives() -> None:
    def low(func: Any, args: Any, kwargs: Any) -> Any:
        x, target = args
        return func(x.bfloat16(), target, **kwargs)

    case = Case(
        "loss",
        lambda: nn.Linear(8, 64),
        lambda: (torch.randn(32, 8), torch.randn(32, 64)),
        lambda m, b: f.mse_loss(m(b[0]), b[1]),
    )
    observed = [row.given for row in traced(case, broken("mse_loss", low)) if row.operator == "aten::mse_loss"]
    assert observed == [("float32", "float32")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_attention_is_traced_in_both_passes(dtype: torch.dtype) -> None:
    """Fused attention may draw random values, but not without dropout; sixteen keys are one AVX512 vector."""
    case = next(case_of_zoo for case_of_zoo in wider_zoo() if case_of_zoo.name == "attention_flash")
    trace = traced(case, dtype=dtype)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    actual = rows(trace, name, "forward") + rows(trace, f"{name}_backward", "backward")
    assert [row.calls for row in actual] == [1, 1]
    assert all(row.model == "fused" and row.share > 0.99 for row in actual)


def test_cancelling_sum_is_no_fault() -> None:
    """A sum that cancels beyond float32's precision is not a fault of the kernel."""
    big = torch.full((8, 1), 1e3)
    case = Case(
        "cancelling",
        nn.Identity,
        lambda: (torch.cat([big, -big, torch.full((8, 1), 1e-3)], 1).requires_grad_(), torch.full((3, 4), 1.1)),
        lambda _, b: {"loss": (b[0] @ b[1]).float().sum()},
    )
    observed = observed_step(case, CPU, torch.float16, seed=0)
    assert [fault for fault in verdict.faults(observed, torch.float16) if fault.call.operator == "aten::mm"] == []


class _Raises(nn.Module):
    """Module that raises, and whose caller continues without it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(x.shape)


class _Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.broken = nn.Linear(8, 8), _Raises()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.broken(x)
        except ArithmeticError:
            x = x.clone()
        result: torch.Tensor = self.inner(x).float() * self.scale
        return result.sinh()


def test_call_is_attributed_to_the_calling_module() -> None:
    """Include calls after a nested module returned or raised; a gradient is accumulated where its parameter is."""
    case = Case(
        "nested",
        lambda: nn.Sequential(_Nested(), _Nested()),
        lambda: torch.randn(4, 8),
        lambda model, x: (model(x) * 2).cosh().mean(),
    )
    trace = traced(case)
    assert {row.module for row in rows(trace, "addmm", "forward")} == {"0.inner", "1.inner"}
    assert {row.module for row in rows(trace, "clone", "forward")} >= {"0", "1"}
    assert {row.module for row in rows(trace, "sinh", "forward")} == {"0", "1"}
    assert {row.module for row in rows(trace, "cosh", "forward")} == {""}
    assert {row.module for row in rows(trace, "cosh", "backward")} == {"0", "1"}  # the backward pass through sinh
    assert {row.module for row in rows(trace, "sinh", "backward")} == {""}


def test_accumulated_gradient_is_attributed_to_its_parameters_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    observer = Observer("cpu", torch.bfloat16, Places(model))
    with observer.on({}):
        for _ in range(2):
            torch.autograd.backward(model(torch.ones(2, 4)).sum())
    added = [call.place for call in observer.observed_calls if call.operator.startswith("aten::add_.")]
    assert sorted(place.module for place in added) == ["0", "0", "1", "1"]
    assert {place.direction for place in added} == {Direction.BACKWARD}
