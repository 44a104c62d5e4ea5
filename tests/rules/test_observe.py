"""Rules of operators, observed by running them on a CPU and on fake devices, and detection of wrong kernels."""

from __future__ import annotations

import ctypes
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch

from pytest_amp import torch_private
from pytest_amp.devices import find_device
from pytest_amp.rules.candidates import label_of
from pytest_amp.rules.checks import checked_from, examine, observed_from, same_bits
from pytest_amp.rules.observe import observe
from pytest_amp.rules.observed import UNOBSERVED, UNRECOGNISED
from pytest_amp.rules.outcome import record, scope
from pytest_amp.rules.registry import Registry, read_registry
from pytest_amp.rules.samples import Sample
from pytest_amp.rules.spec import Coverage
from pytest_amp.rules.variations import Variation

_untyped: Any = torch.library
LOW = (torch.bfloat16, torch.float16)
Plant = Callable[[str, Callable[..., Any]], None]


@pytest.fixture
def plant() -> Iterator[Plant]:
    """Replace the autocast kernel of an operator on the CPU for one test."""
    library = _untyped.Library("aten", "IMPL")

    def replace(overload: str, kernel: Callable[..., Any]) -> None:
        def below(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return kernel(*args, **kwargs)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel already exists
            library.impl(overload, below, "AutocastCPU")

    yield replace
    library._destroy()


def _rule(overload: str) -> str:
    return observe(f"aten::{overload}", find_device("cpu"), torch.bfloat16).rule


@pytest.mark.parametrize("name", ["cpu", "fake:cuda", "fake:xpu", "fake:mps", "fake:mtia"])
@pytest.mark.parametrize("low", LOW, ids=str)
def test_registered_operators_have_the_rule_of_the_spec(name: str, low: torch.dtype) -> None:
    device = find_device(name)
    registry = read_registry(device.type)
    wrong = {}
    for overload in registry.registered:
        rule = registry.expected[overload]
        observed = observe(overload, device, low, rule=rule)
        if observed.rule != label_of(rule, low):
            wrong[overload] = (observed.rule, observed.reason)
    unobservable = {name for name, (rule, _) in wrong.items() if rule == UNOBSERVED and "imname" in name}
    assert set(wrong) == unobservable


def test_results_are_plain_json() -> None:
    device = find_device("cpu")
    observed = observe("aten::mm", device, torch.bfloat16)
    assert observed_from(json.loads(json.dumps(asdict(observed)))).rule == "lower_precision_fp"
    data = json.loads(json.dumps(examine("hand_cast", "aten::mm", device, torch.bfloat16)))
    checked = checked_from(data)
    assert checked.ran[:2] == ("float32", "bfloat16")
    assert checked.result == ("bfloat16",)
    assert checked.failures == ()


def test_evidence_lists_the_casts() -> None:
    evidence = observe("aten::mm", find_device("cpu"), torch.bfloat16).evidence
    assert evidence[0].casts == ("float32[3, 4] to bfloat16", "float32[4, 5] to bfloat16")
    assert evidence[1].casts == ()
    assert evidence[0].result == ("bfloat16[3, 5]",)


def test_operator_without_a_kernel_or_a_sample_has_no_rule() -> None:
    device = find_device("cpu")
    assert observe("aten::exp", device, torch.bfloat16).rule == "none"
    observed = observe("aten::relu", device, torch.bfloat16)
    assert (observed.rule, observed.reason) == (UNOBSERVED, "no sample arguments are known for it")
    with pytest.raises(LookupError, match="has no operator aten::no_such_thing"):
        observe("aten::no_such_thing", device, torch.bfloat16)


def test_replaced_rule_is_detected(plant: Plant) -> None:
    plant("mm", lambda a, b: torch.mm(a.float(), b.float()))
    assert _rule("mm") == "fp32"


def test_cast_to_another_dtype_is_unrecognised(plant: Plant) -> None:
    plant("mm", lambda a, b: torch.mm(a.half(), b.half()))
    assert _rule("mm") == UNRECOGNISED


def test_cast_through_another_dtype_is_unrecognised(plant: Plant) -> None:
    plant("mm", lambda a, b: torch.mm(a.half().bfloat16(), b.half().bfloat16()))
    assert _rule("mm") == UNRECOGNISED


def test_ignored_dtype_argument_is_unrecognised(plant: Plant) -> None:
    plant("softmax.int", lambda x, dim, dtype=None: torch.softmax(x, dim, dtype=dtype or torch.float32))
    assert _rule("softmax.int") == "fp32_set_opt_dtype"
    plant("softmax.int", lambda x, dim, dtype=None: torch.softmax(x, dim, dtype=torch.float32))  # noqa: ARG005  # so
    assert _rule("softmax.int") == UNRECOGNISED


def test_kernel_that_always_raises_is_unrecognised(plant: Plant) -> None:
    def kernel(*_: object) -> None:
        raise RuntimeError("out of order")

    plant("mm", kernel)
    assert _rule("mm") == UNRECOGNISED


def test_operator_that_fails_after_its_casts_has_a_rule() -> None:
    observed = observe("aten::_thnn_fused_gru_cell", find_device("fake:xpu"), torch.float16)
    assert observed.rule == "lower_precision_fp"


@pytest.mark.parametrize(
    ("overload", "kernel", "check", "failure"),
    [
        ("mm", lambda a, b: torch.mm(a.bfloat16(), b.bfloat16()), "left_alone", "float64: "),
        ("bmm", lambda a, b: torch.bmm(a.bfloat16(), b.bfloat16()).mul(1), "hand_cast", "float32: "),
        (
            "stack",
            lambda x, dim=0: torch.stack([t.to(x[0].dtype) for t in x], dim),
            "orders",
            "only argument 0 bfloat16",
        ),
        (
            "mse_loss",
            lambda a, b, r=1: torch.ops.aten.mse_loss(a.mul_(1).float(), b.float(), r),
            "hand_cast",
            "float32: ",
        ),
    ],
)
def test_wrong_kernel_fails_its_check(
    plant: Plant, overload: str, kernel: Callable[..., Any], check: str, failure: str
) -> None:
    plant(overload, kernel)
    checked = checked_from(examine(check, f"aten::{overload}", find_device("cpu"), torch.bfloat16))
    assert any(problem.startswith(failure) for problem in checked.failures)


def test_kernel_that_writes_to_its_argument_is_detected(plant: Plant) -> None:
    """Write to memory without an operator, so that the calls below autocast equal those of manual casts."""

    def kernel(a: torch.Tensor, b: torch.Tensor, reduction: int = 1) -> Any:
        result = torch.ops.aten.mse_loss(a.float(), b.float(), reduction)
        if a.dtype == torch.float32 and a.data_ptr():  # an empty tensor has none
            ctypes.c_float.from_address(a.data_ptr()).value += 1
        return result

    plant("mse_loss", kernel)
    checked = checked_from(examine("hand_cast", "aten::mse_loss", find_device("cpu"), torch.bfloat16))
    assert "float32: floating argument 0 was written to" in checked.failures


def test_same_bits_ignores_payloads_of_nan() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001, -1], dtype=torch.int32).view(torch.float32)
    assert bits.isnan().all()
    assert same_bits(bits, bits.flip(0))
    zero = torch.zeros(2)
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.to(torch.float64))
    assert not same_bits(zero, torch.zeros(2, 1))
    assert not same_bits(bits, torch.ones(3))


def test_registry_separates_new_gone_and_foreign_operators() -> None:
    kernels = [name for name in torch_private.autocast_registrations("cpu") if name != "aten::mm"]
    registry = read_registry("cpu", registered=[*kernels, "aten::relu", "torchvision::roi_align"])
    assert registry.coverage is Coverage.COVERED
    assert registry.new == ("aten::relu",)
    assert registry.gone == ("aten::mm",)
    assert registry.foreign == ("torchvision::roi_align",)


def test_operators_of_some_builds_are_neither_new_nor_gone() -> None:
    kernels = set(torch_private.autocast_registrations("cuda"))
    with_cudnn: Registry = read_registry("cuda", registered=kernels | {"aten::_cudnn_rnn"})
    without: Registry = read_registry("cuda", registered=kernels - {"aten::_cudnn_rnn"})
    assert (with_cudnn.new, with_cudnn.gone, without.new, without.gone) == ((), (), (), ())


def test_faked_call_runs_no_kernel_of_a_real_device() -> None:
    """Fake tensors would otherwise run the kernel of an operator without a fake rule, with any layout and size."""
    ran: list[torch.Tensor] = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        ran.append(x)
        return x.clone()

    make_library: Any = torch.library.Library
    library = make_library("pytest_amp_faked", "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", kernel, "CPU")
    device = find_device("cpu")
    try:
        for faked in (False, True):
            variation = Variation("float32", (torch.float32,), faked=faked)
            with scope(device, variation):
                call = variation.invocation("pytest_amp_faked::op", Sample((torch.ones(2),)), device)
                outcome = record(call)
            assert len(ran) == 1, faked
            assert (outcome.message is None) is not faked
    finally:
        library._destroy()
