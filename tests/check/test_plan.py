"""Trainings of ``amp.check`` that are too short to tell anything."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_amp.cases import mlp
from pytest_amp.check import plan as plans
from pytest_amp.check.collect import Collector
from pytest_amp.check.plan import STEPS, Plan
from pytest_amp.devices import find_device
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16
from pytest_amp.training import Setup, TooLittleSeen, make_band
from tests.training.test_band import LOSSES


def still(steps: int) -> object:
    """Fail as a training in which the loss does not move."""
    case = mlp()
    setup = Setup(case, find_device("cpu"), BF16, steps=steps, make_optimizer=torch.optim.AdamW)
    raise TooLittleSeen(setup, make_band(LOSSES, [LOSSES], u=BF16.u))


@pytest.mark.parametrize("is_late", [False, True])
def test_mend_says_if_the_time_ended_the_training(monkeypatch: pytest.MonkeyPatch, *, is_late: bool) -> None:
    monkeypatch.setattr(plans, "CHEAP", math.inf)  # on a busy machine a step may take long
    monkeypatch.setattr(plans, "BUDGET", -1.0 if is_late else 1e9)
    collector = Collector([])
    plan = Plan(mlp(), Conditions(find_device("cpu"), BF16), collector, train=None, evaluate=None, optimizer=None)
    plan.train_with(still)
    (entry,) = collector.entries
    assert entry.message.startswith(f"{STEPS[0] if is_late else STEPS[-1]} steps")
    (mend,) = [text for label, text in entry.parts if label == "mend"]
    assert ("amp.check_training(case, steps=48, ...)" in mend) == is_late
