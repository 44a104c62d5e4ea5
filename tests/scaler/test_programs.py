"""Random programs agree with torch's scaler, and detect one that behaves differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import ReferenceScaler
from pytest_amp.scaler.machine import run_programs
from pytest_amp.scaler.programs import KINDS, SideBySide

_INFINITE = float("inf")


def steps_anyway(_scaler: Any, optimizer: Any, _state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def keeps_its_stages(scaler: Any, new_scale: Any = None) -> None:
    before = scaler._per_optimizer_states
    REAL_UPDATE(scaler, new_scale)
    scaler._per_optimizer_states = before


def forgets_its_tracker(scaler: Any) -> dict[str, Any]:
    state = REAL_STATE(scaler)
    return {**state, "_growth_tracker": 0} if state else state


REAL_UPDATE = torch.amp.GradScaler.update
REAL_STATE = torch.amp.GradScaler.state_dict


def side_by_side(*kinds: str, scale: float = 8.0, precision: Precision = FP16) -> SideBySide:
    return SideBySide(find_device("cpu"), precision, ReferenceScaler(scale), kinds)


@pytest.mark.parametrize("precision", [FP16, BF16], ids=["fp16", "bf16"])
def test_gradscaler_agrees_with_the_reference(precision: Precision) -> None:
    assert run_programs(find_device("cpu"), precision, programs=10).total() > 200


def test_seed_determines_the_programs() -> None:
    cpu = find_device("cpu")
    first, second, other = (run_programs(cpu, FP16, programs=5, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("_maybe_opt_step", steps_anyway),
        ("update", keeps_its_stages),
        ("state_dict", forgets_its_tracker),
        ("load_state_dict", lambda *_: None),
        ("set_growth_factor", lambda *_: None),
    ],
    ids=["step", "update", "state_dict", "load_state_dict", "set_growth_factor"],
)
def test_wrong_scaler_is_detected(monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[..., Any]) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, method, wrong)
    with pytest.raises(AssertionError, match=r"after \d+ calls GradScaler has"):
        run_programs(find_device("cpu"), FP16, programs=40)


def test_failing_program_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "update", keeps_its_stages)
    with pytest.raises(AssertionError, match=r"after \d+ calls") as actual:
        run_programs(find_device("cpu"), FP16, programs=40)
    assert str(actual.value).partition("calls: ")[2].count(";") <= 6


def test_gradients_overflow_in_the_range_of_the_dtype() -> None:
    both = side_by_side("loop", scale=2.0**17)
    both.backward([0], together=False)
    assert [abs(g) for g in both.lanes[0].gradients or []] == [_INFINITE] * 4
    both.compare()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [None, _INFINITE])
def test_iteration_of_each_kind_agrees_with_the_reference(kind: str, bad: float | None) -> None:
    both = side_by_side(kind, precision=BF16)
    (lane,) = both.lanes
    both.backward([0], together=False)
    if bad is not None:
        both.plant(lane, 2, bad)
    both.step(lane, closure=False)
    both.compare()
    refused = kind == "loop fp16"
    assert lane.values == ([0.5, 2.0, -0.5, -1.5] if bad is None and not refused else [1.0] * 4)
    assert (lane.gradients == [1.0, -2.0, 3.0, 5.0]) == (bad is None and not refused)


def test_disagreement_lists_the_calls() -> None:
    both = side_by_side("loop", "fused")
    both.backward([0, 1], together=True)
    both.model.tracker = 3
    with pytest.raises(AssertionError, match=r"_growth_tracker': 0.*the model has.*calls:.*backward ab as a list"):
        both.compare()


def test_fused_kernel_applies_in_float32_what_float16_cannot_store() -> None:
    """At a scale of 1/4 the gradients, which are never set to zero, grow until their quotients are beyond float16."""
    both = side_by_side("fused fp16", scale=0.25)
    (lane,) = both.lanes
    for _ in range(8):
        both.backward([0], together=False)
        both.step(lane, closure=False)
        both.update()
        both.compare()
    assert lane.gradients is not None
    assert lane.gradients[2] == _INFINITE
    assert abs(lane.values[2]) < _INFINITE
