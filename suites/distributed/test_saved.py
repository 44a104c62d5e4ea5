"""Distributed checkpoints: weights, moments and scale are loaded bitwise, and the training continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_saved
from .expectations import expect_same, needs_streams, settings
from .models import Tensors, build
from .policies import POLICIES

_UNITS = {"DDP": "autocast", "FSDP1": "low, reduced in float32", "FSDP2": "low, reduced in float32"}


@pytest.mark.filterwarnings("ignore:torch.distributed is")  # it is loaded in one process, too
@pytest.mark.parametrize(
    "within", [pytest.param(False, marks=pytest.mark.amp_long), True], ids=["outside", "in a region"]
)
@pytest.mark.parametrize(
    "unit", [*(pytest.param(name, marks=pytest.mark.amp_long) for name in ("DDP", "FSDP1")), "FSDP2"]
)
def test_a_training_goes_on_as_it_was(
    amp: SuiteAmp, ranks: RankGroup, tmp_path: Path, unit: str, *, within: bool
) -> None:
    """Save and load by ``torch.distributed.checkpoint`` bit for bit, in all ranks and in one process."""
    if unit == "FSDP2":
        needs_streams(amp)
    rule = POLICIES[_UNITS[unit]]
    arguments = {
        "unit": unit,
        "policy": rule.requested(amp),
        "region": rule.region,
        "folder": str(tmp_path),
        "within": within,
    }
    answers = ranks.ask(ranks_saved.resume, settings(amp, **arguments))
    for number, answer in enumerate(answers):
        for before, after in (("saved", "loaded"), ("whole", "resumed")):
            _expect_equal(amp, answer[after], answer[before], subject=f"{unit}, {after} on rank {number}")
    from torch.distributed import checkpoint as untyped

    checkpoint: Any = untyped
    alone = build()
    state = {"model": {name: torch.zeros_like(value) for name, value in alone.state_dict().items()}}
    checkpoint.load(state, checkpoint_id=str(tmp_path))
    expect_same(amp, state["model"], answers[0]["saved"]["weights"], subject=f"{unit}, loaded in one process")


def _expect_equal(amp: SuiteAmp, actual: dict[str, Any], expected: dict[str, Any], *, subject: str) -> None:
    tensors: dict[str, Tensors] = {key: expected[key] for key in ("weights", "moments")}
    for key, values in tensors.items():
        assert {value.dtype for value in values.values()} == {torch.float32}
        expect_same(amp, actual[key], values, subject=f"{subject}, {key}")
    assert actual["scaler"] == expected["scaler"], f"{subject}: the scaler's state differs"
