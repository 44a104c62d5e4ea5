"""``trace``: a table of operators that says where each is, what it takes and how it rounds."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.cases import Case, cnn, mlp
from pytest_amp.devices import Device, find_device
from pytest_amp.numerics.oracle import Row, Trace, observed_step, trace_of
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


def test_it_prints_as_a_table() -> None:
    lines = str(traced(mlp())).splitlines()
    assert lines[0] == "mlp"
    assert lines[1].split() == ["module", "pass", "operator", "dtypes", "rule", "model", "calls", "equal", "error"]
    assert any(line.split()[:3] == ["1", "backward", "tanh_backward"] for line in lines)
    assert any(line.endswith("hollow") for line in lines)
    assert max(map(len, lines)) < 200


def test_updated_statistics_are_results() -> None:
    trace = traced(cnn())
    norm = rows(trace, "native_batch_norm", "forward")[0]
    assert norm.returned == ("bfloat16", "float32", "float32", "float32", "float32")
    assert not norm.hollow
    assert norm.share > 0.999


def test_shares_add_up_by_operator() -> None:
    shares = traced(mlp()).signatures()
    assert shares["addmm/forward"] > 0.999
    assert shares["mm/backward"] > 0.999
    assert shares["tanh_backward/backward"] == 1.0


@pytest.mark.parametrize("name", ["addmm", "gelu"])
def test_a_kernel_that_rounds_twice_is_seen(name: str) -> None:
    """In a low dtype with fewer bits yet, below autocast, where no comparison of dtypes looks."""
    untyped: Any = torch.library
    library = untyped.Library("aten", "IMPL")
    overload = getattr(torch.ops.aten, name).default
    kernel = torch.library.get_kernel(overload, "CPU") if hasattr(torch.library, "get_kernel") else None
    if kernel is None:
        pytest.skip("this torch hands no kernels out")

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


def test_an_operator_in_another_dtype_is_seen() -> None:
    def low(func: Any, args: Any, kwargs: Any) -> Any:
        x, target = args
        return func(x.bfloat16(), target, **kwargs)

    case = Case(
        "loss",
        lambda: nn.Linear(8, 64),
        lambda: (torch.randn(32, 8), torch.randn(32, 64)),
        lambda m, b: f.mse_loss(m(b[0]), b[1]),
    )
    seen = [row.given for row in traced(case, broken("mse_loss", low)) if row.operator == "aten::mse_loss"]
    assert seen == [("float32", "float32")]
