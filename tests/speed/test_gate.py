"""Outcome of a speed test: passed, failed, or skipped as inconclusive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.devices.cpu import CpuDevice, cpu_name
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16, FP16
from pytest_amp.speed import (
    Demand,
    Outcome,
    Plan,
    SpeedConditions,
    TimedStep,
    arms_of,
    check_speedup,
    gate,
    name_of,
    step_maker,
    step_of,
    training_step,
)
from pytest_amp.speed.workloads import Autocast
from tests.observing import Noted
from tests.speed.simulated import SimulatedClock, check_simulated


class _NoBenchmark:
    """Stand-in for pytest-benchmark, whose session runs these tests and whose table should not list them."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        pass

    def record(self, name: str, seconds: list[float], facts: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "Benchmark", _NoBenchmark)


SHAKY = [2.0] * 30 + [4.0] * 30


def test_too_slow_work_fails_with_a_complete_message(request: pytest.FixtureRequest) -> None:
    with pytest.raises(AmpFailure) as failure:
        check_simulated(request, candidate=4.0)
    lines = str(failure.value).splitlines()
    assert lines[0] == "AmpFailure: sums under bf16 autocast is 0.75 times as fast as in IEEE fp32, in step time"
    assert lines[1].split(maxsplit=1) == ["floor", "1.2 times, with a margin of 3.0%"]
    assert lines[2].split(maxsplit=1)[1].startswith("0.75 [0.75, 0.75], median and 99% interval of 12 quads on ")
    assert lines[2].endswith("measured before: 0.75 [0.75, 0.75]")
    assert [line.split()[0] for line in lines[1:]] == ["floor", "now", "likely", "accept"]


def test_inconclusive_check_is_skipped(request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"^inconclusive: sums: the times of one arm vary by .* floor 1.2"):
        check_simulated(request, reference=8.0, candidate=SHAKY)


def test_strict_mode_refuses_inconclusive(request: pytest.FixtureRequest) -> None:
    with pytest.raises((AmpFailure, pytest.skip.Exception), match="inconclusive") as failure:  # a skip would pass here
        check_simulated(request, reference=8.0, candidate=SHAKY, strict=True)
    assert "inconclusive, which --amp-strict refuses" in str(failure.value)
    assert "the times of one arm vary" in str(failure.value)


@pytest.mark.parametrize(
    ("candidate", "outcome"), [([4.0], Outcome.FAIL), (SHAKY, Outcome.INCONCLUSIVE), ([2.0], Outcome.PASS)]
)
def test_report_mode_never_fails(request: pytest.FixtureRequest, candidate: list[float], outcome: Outcome) -> None:
    measured = check_simulated(request, candidate=candidate, mode="report", strict=True)
    assert measured is not None
    assert measured.verdict.outcome is outcome


@pytest.mark.parametrize("candidate", [2.0, 4.0])
def test_speedup_times_and_conditions_are_observed(request: pytest.FixtureRequest, candidate: float) -> None:
    observed = Noted()
    check_simulated(request, candidate=candidate, mode="report", observe=observed.observe)
    ratio = pytest.approx(3.0 / candidate)
    names = ("speedup", "float32-time", "autocast-time")
    beside = observed.pop("sums/over-fp32/step/conditions")
    assert beside == {"gpu": "", "host": cpu_name(), "yardstick": {}, "kernels": {}}
    assert dict(observed) == dict(
        zip((f"sums/over-fp32/step/{name}" for name in names), (ratio, 3.0, candidate), strict=True)
    )
    # A report is not judged by a baseline, either.
    judged = {"interval": (ratio, ratio), "better": None, "margin": None}
    assert observed.facts["sums/over-fp32/step/speedup"] == {"kind": "ratio", "unit": "times", "allowed": 1.2, **judged}
    for name, seconds in zip(names[1:], (3.0, candidate), strict=True):
        ends = {"interval": (seconds, seconds), "better": None, "margin": None}
        assert observed.facts[f"sums/over-fp32/step/{name}"] == {"kind": "seconds", "unit": "s", **ends}


def test_doubtful_speedup_is_observed_without_a_direction(request: pytest.FixtureRequest) -> None:
    """No baseline judges it, and nothing is judged by it."""
    doubtful, sound, name = Noted(), Noted(), "sums/over-fp32/step/speedup"
    with pytest.raises(pytest.skip.Exception, match="inconclusive: sums"):
        check_simulated(request, reference=8.0, candidate=SHAKY, observe=doubtful.observe)
    assert (doubtful.facts[name]["better"], doubtful.facts[name]["margin"]) == (None, None)
    check_simulated(request, observe=sound.observe)
    assert sound.facts[name]["better"] == "higher"


class H100(CpuDevice):
    """CPU that claims to be a card of the data file."""

    def describe(self) -> str:
        return "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("over", "ceiling", "outcome"),
    [
        ("tf32", None, Outcome.INCONCLUSIVE),
        ("fp32", None, Outcome.PASS),
        ("tf32", 3.0, Outcome.PASS),
        ("fp32", 2.0, Outcome.INCONCLUSIVE),
    ],
)
def test_speedup_beyond_the_card_is_inconclusive(
    request: pytest.FixtureRequest, over: str, ceiling: float | None, outcome: Outcome
) -> None:
    def step(autocast: Autocast) -> float:
        with autocast():
            return 1.0 if torch.is_autocast_enabled("cpu") else 2.5

    demand = Demand("sums", 0.9, over, ceiling=ceiling, plan=Plan(warm_up=0))
    conditions = SpeedConditions(H100(), BF16, "report")
    measured = check_speedup(lambda: step, demand, conditions, request, clock=SimulatedClock())
    assert measured is not None
    assert measured.verdict.outcome is outcome


@pytest.mark.parametrize(("mode", "skipped"), [("gate", True), ("report", False)])
def test_device_without_a_clock_is_inconclusive(
    request: pytest.FixtureRequest,
    mode: str,
    skipped: bool,  # noqa: FBT001
) -> None:
    conditions = SpeedConditions(find_device("fake:cuda"), BF16, mode)

    def step() -> TimedStep:
        raise AssertionError

    if skipped:
        with pytest.raises(pytest.skip.Exception, match="inconclusive: sums: fake:cuda computes nothing"):
            check_speedup(step, Demand("sums", 0.9, "fp32"), conditions, request)
    else:
        assert check_speedup(step, Demand("sums", 0.9, "fp32"), conditions, request) is None


def test_invalid_demands_are_refused() -> None:
    with pytest.raises(ValueError, match="versus='ieee' is no kind of float32; expected fp32, tf32"):
        Demand("sums", 0.9, "ieee")
    with pytest.raises(ValueError, match="kind='eager' is nothing that is timed; expected device, step"):
        Demand("sums", 0.9, "fp32", kind="eager")
    for floor in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a finite number, 0 or more"):
            Demand("sums", floor, "fp32")


def test_data_is_seeded_and_recreated_to_confirm_a_failure(request: pytest.FixtureRequest) -> None:
    result: list[float] = []

    def make_step() -> TimedStep:
        result.append(torch.rand(()).item())

        def step(autocast: Autocast) -> float:
            with autocast():
                return 2.0 if torch.is_autocast_enabled("cpu") else 1.0

        return step

    conditions = SpeedConditions(find_device("cpu"), BF16, "report", seed=7)
    check_speedup(
        make_step, Demand("sums", 0.9, "fp32", plan=Plan(warm_up=0)), conditions, request, clock=SimulatedClock()
    )
    torch.manual_seed(7)
    assert result == [torch.rand(()).item()] * 2


@pytest.mark.parametrize("over", ["fp32", "tf32"])
def test_float32_is_pinned_while_both_arms_run(request: pytest.FixtureRequest, over: str) -> None:
    observed = set()

    def step(autocast: Autocast) -> float:
        with autocast():
            pinned = getattr(torch.backends.cuda.matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
            observed.add((torch.is_autocast_enabled("cpu"), pinned))
            return 2.0

    conditions = SpeedConditions(find_device("cpu"), BF16, "report")
    check_speedup(
        lambda: step, Demand("sums", 0.9, over, plan=Plan(warm_up=0)), conditions, request, clock=SimulatedClock()
    )
    kinds = {pinned for _, pinned in observed}
    assert kinds <= ({"ieee", "highest"} if over == "fp32" else {"tf32", "high"})
    assert {enabled for enabled, _ in observed} == {False, True}


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_arms_differ_only_by_autocast(precision: object) -> None:
    dtype = BF16.dtype if precision is BF16 else FP16.dtype
    weight = torch.ones(4, 4)
    arms = arms_of(step_of(lambda: lambda: weight @ weight), find_device("cpu"), dtype)
    reference, candidate = arms.reference(), arms.candidate()
    assert isinstance(reference, torch.Tensor)
    assert isinstance(candidate, torch.Tensor)
    assert (reference.dtype, candidate.dtype) == (torch.float32, dtype)


def test_training_step_creates_new_gradients() -> None:
    model = torch.nn.Linear(4, 1)
    batch = torch.ones(2, 4)
    observed: list[bool] = []

    def loss(model: torch.nn.Module, batch: object) -> torch.Tensor:
        observed.append(torch.is_autocast_enabled("cpu"))
        value: torch.Tensor = model(batch)
        return value.sum()

    arms = arms_of(training_step(model, batch, loss), find_device("cpu"), torch.bfloat16)
    arms.reference()
    once = model.weight.grad
    assert once is not None
    arms.candidate()
    again = model.weight.grad
    assert again is not None
    assert again is not once
    assert torch.equal(again, once)
    assert observed == [False, True]


def test_case_is_timed_as_a_training_step() -> None:
    case = mlp(inputs=4, width=8, classes=3, batch=2)
    make = step_maker(case, find_device("cpu"), seed=3)
    arms = arms_of(make(), find_device("cpu"), torch.bfloat16)
    reference, candidate, again = arms.reference(), arms.candidate(), arms_of(make(), find_device("cpu"), BF16.dtype)
    assert isinstance(reference, torch.Tensor)
    assert isinstance(candidate, torch.Tensor)
    assert reference.numel() == 1
    assert not torch.equal(reference, candidate), "computed in another precision"
    assert torch.equal(reference, torch.as_tensor(again.reference())), "made anew from the same seed"


def test_work_is_named_after_its_case_or_function() -> None:
    def product() -> Callable[[], object]:
        return object

    assert [name_of(mlp()), name_of(product), name_of(partial(product))] == ["mlp", "product", "partial"]
