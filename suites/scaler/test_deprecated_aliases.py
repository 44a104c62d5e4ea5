"""``torch.cuda.amp.GradScaler`` and ``torch.cpu.amp.GradScaler``: a FutureWarning, and otherwise the same scaler."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory, training

pytestmark = pytest.mark.amp(devices=["cpu", "cuda"])

_SETTINGS = {"init_scale": 8.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 2}


def _alias(amp: SuiteAmp) -> Callable[..., torch.amp.GradScaler]:
    alias: Callable[..., torch.amp.GradScaler] = getattr(torch, amp.device.type).amp.GradScaler
    return alias


def _quietly(amp: SuiteAmp, *args: Any, **keywords: Any) -> torch.amp.GradScaler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return _alias(amp)(*args, **keywords)


def test_it_warns_and_names_its_successor(amp: SuiteAmp) -> None:
    with pytest.warns(FutureWarning, match=r"is deprecated. Please use `torch.amp.GradScaler") as caught:
        scaler = _alias(amp)()
    assert f"torch.amp.GradScaler('{amp.device.type}'" in str(caught[0].message)
    assert isinstance(scaler, torch.amp.GradScaler)


def test_its_defaults_and_its_arguments_are_the_same(amp: SuiteAmp) -> None:
    """Arguments work by keyword and by position; no device comes before them."""
    assert _quietly(amp).state_dict() == torch.amp.GradScaler(amp.device.type).state_dict()
    plain = torch.amp.GradScaler(amp.device.type, *_SETTINGS.values())  # type: ignore[arg-type]
    assert _quietly(amp, **_SETTINGS).state_dict() == plain.state_dict()
    assert _quietly(amp, *_SETTINGS.values()).state_dict() == plain.state_dict()
    assert not _quietly(amp, enabled=False).is_enabled()


def test_it_trains_as_the_other(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Compare scales, trackers and parameters through growth, overflow, and a resume from the other one's state."""
    ends = []
    for scaler in (amp_scaler(**_SETTINGS), _quietly(amp, **_SETTINGS)):
        run = training(amp, scaler)
        trace = [run.iterate(bad) for bad in (None, None, INF, None, INF, INF, None, None)]
        run.scaler.load_state_dict({**amp_scaler(**_SETTINGS).state_dict(), "_growth_tracker": 1})
        trace.append(run.iterate())
        ends.append((trace, run.parameter.detach().flatten().tolist()))
    if ends[0] != ends[1]:
        raise AmpFailure(
            f"the deprecated GradScaler of {amp.device.type} does not do what torch.amp.GradScaler does",
            label_before="rule",
            before=str(ends[0]),
            now=str(ends[1]),
            likely="the alias passes its arguments on in another order, or overrides a method",
        )


def test_it_refuses_in_the_same_words(amp: SuiteAmp) -> None:
    run = training(amp, _quietly(amp, **_SETTINGS))
    run.backward()
    run.scaler.unscale_(run.optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer since the last update"):
        run.scaler.unscale_(run.optimizer)
    with pytest.raises(AssertionError, match="may only be pickled"):
        pickle.dumps(run.scaler)


def test_it_unpickles_quietly_as_itself(amp: SuiteAmp) -> None:
    scaler = _quietly(amp, **_SETTINGS)
    scaler.scale(nn.Parameter(torch.ones((), device=amp.device.torch_device)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = pickle.loads(pickle.dumps(scaler))  # noqa: S301  # pickled just now
    assert type(copied) is type(scaler)
    assert copied.state_dict() == scaler.state_dict()
