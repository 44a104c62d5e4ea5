"""Random programs agree with torch's scaler, and find one that does anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler.programs import Program

_INFINITE = float("inf")


def program(seed: int, precision: Precision = FP16) -> Program:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    return Program(find_device("cpu"), precision, scaler, seed=seed)


def run_programs(count: int, precision: Precision = FP16) -> None:
    for seed in range(count):
        program(seed, precision).run(60)


def steps_anyway(_scaler: Any, optimizer: Any, _state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def keeps_its_stages(scaler: Any, new_scale: Any = None) -> None:
    before = scaler._per_optimizer_states
    REAL_UPDATE(scaler, new_scale)
    scaler._per_optimizer_states = before


def forgets_its_tracker(scaler: Any) -> dict[str, Any]:
    return {**REAL_STATE(scaler), "_growth_tracker": 0}


REAL_UPDATE = torch.amp.GradScaler.update
REAL_STATE = torch.amp.GradScaler.state_dict


@pytest.mark.parametrize("precision", [FP16, BF16], ids=["fp16", "bf16"])
def test_the_real_scaler_agrees(precision: Precision) -> None:
    run_programs(8, precision)


def test_a_seed_gives_the_same_program_each_time() -> None:
    first, second, other = program(1), program(1), program(2)
    for each in (first, second, other):
        each.run(30)
    assert first.log == second.log
    assert first.log != other.log


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
def test_a_wrong_scaler_is_found(monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[..., Any]) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, method, wrong)
    with pytest.raises(AssertionError, match=r"after \d+ calls GradScaler has"):
        run_programs(20)


def test_gradients_overflow_as_the_dtype_does() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
    large = Program(find_device("cpu"), FP16, scaler, seed=0)
    large._backward()
    (side,) = [side for side in large.sides.values() if side.gradients is not None]
    assert [abs(g) for g in side.gradients or []] == [_INFINITE] * 4
    large._compare()
