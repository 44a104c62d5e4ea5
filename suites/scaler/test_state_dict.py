"""Saving and loading: a resumed scaler continues as if uninterrupted."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory, Training, training


def _through_state_dict(scaler: torch.amp.GradScaler, fresh: torch.amp.GradScaler) -> torch.amp.GradScaler:
    fresh.load_state_dict(scaler.state_dict())
    return fresh


#: Ways to transfer a scaler from one process to another.
WAYS: dict[str, Callable[[torch.amp.GradScaler, torch.amp.GradScaler], torch.amp.GradScaler]] = {
    "state_dict": _through_state_dict,
    "pickle": lambda scaler, _: pickle.loads(pickle.dumps(scaler)),  # noqa: S301  # pickled just now
    "deepcopy": lambda scaler, _: copy.deepcopy(scaler),
}


def _resume(run: Training, scaler: torch.amp.GradScaler) -> Training:
    resumed = training(run.amp, scaler)
    with torch.no_grad():
        resumed.parameter.copy_(run.parameter)
    return resumed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [0, 1, 2, 4], ids=lambda steps: f"after {steps}")
def test_a_resumed_run_is_the_one_without(amp: SuiteAmp, amp_scaler: ScalerFactory, way: str, steps: int) -> None:
    """Resume in the middle of a growth interval, too: scale, tracker and parameters, step for step."""
    plan = [None, None, INF, None, None, None, None, None]
    whole = training(amp, amp_scaler(init_scale=8.0, growth_interval=3))
    expected = [whole.iterate(bad) for bad in plan]
    first = training(amp, amp_scaler(init_scale=8.0, growth_interval=3))
    actual = [first.iterate(bad) for bad in plan[:steps]]
    second = _resume(first, WAYS[way](first.scaler, amp_scaler()))
    actual += [second.iterate(bad) for bad in plan[steps:]]
    if actual != expected or not torch.equal(second.parameter, whole.parameter):
        raise AmpFailure(
            f"a run that is resumed after {steps} steps by {way} on {amp.target.id} differs",
            label_before="rule",
            before=f"scale and growth tracker {expected}",
            now=f"{actual}",
            likely="state_dict, load_state_dict or pickling loses the scale, the tracker or a factor",
        )


def test_a_state_dict_is_plain_data(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """State consists of five numbers and no tensor: it survives JSON."""
    run = training(amp, amp_scaler(init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7))
    run.iterate()
    saved = run.scaler.state_dict()
    expected = {"scale": 8.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7, "_growth_tracker": 1}
    assert saved == expected
    assert json.loads(json.dumps(saved)) == saved
    amp.observe("state_dict", [*sorted(saved)], kind="state")


@pytest.mark.parametrize("used", [False, True], ids=["before its first scale", "in the middle of a run"])
def test_loading_overwrites_everything(amp: SuiteAmp, amp_scaler: ScalerFactory, *, used: bool) -> None:
    saved = {"scale": 32.0, "growth_factor": 4.0, "backoff_factor": 0.125, "growth_interval": 5, "_growth_tracker": 4}
    run = training(amp, amp_scaler(init_scale=8.0))
    if used:
        run.iterate()
    run.scaler.load_state_dict(dict(saved))
    assert run.scaler.state_dict() == saved
    assert run.iterate() == (128.0, 0)
    assert run.iterate(INF) == (16.0, 0)


def test_an_empty_state_dict_is_refused(amp_scaler: ScalerFactory) -> None:
    """A disabled scaler saves an empty state: loading it would silently lose the scale."""
    scaler = amp_scaler(init_scale=8.0)
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        scaler.load_state_dict(amp_scaler(enabled=False).state_dict())
    assert scaler.get_scale() == 8.0


def test_pickling_between_unscale_and_update_is_refused(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward()
    run.scaler.unscale_(run.optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning of an iteration"):
        pickle.dumps(run.scaler)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    pickle.dumps(run.scaler)
