"""Distributed checkpoints: weights, moments and scale are loaded bitwise, and the training continues."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup

from .expectations import expect_same, needs_streams, settings
from .models import Region, Tensors, build, loss, plain, realised, rows_of
from .policies import POLICIES
from .programs import full, low_dtype
from .ranks_ddp import wrapped as data_parallel
from .ranks_fsdp import sharded, wrapped


class _Training:
    """Model, optimizer and scaler of a rank."""

    def __init__(self, rank: Rank, settings: Mapping[str, Any], seed: int) -> None:
        instance = realised(seed, rank.device)
        makes: Any = {"DDP": data_parallel, "FSDP1": wrapped, "FSDP2": sharded}[settings["unit"]]
        self.model: Any = makes(instance.model, rank, {} if settings["unit"] == "DDP" else settings["policy"])
        self._one_unit = settings["unit"] == "FSDP1"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.scaler = torch.amp.GradScaler(rank.device.type, init_scale=256.0, growth_interval=3)
        self._region: Region = lambda: rank.autocast(low_dtype(settings), enabled=settings["region"])

    def steps(self, rows: Mapping[str, torch.Tensor], count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            with self._region():
                value = loss(self.model, rows)["loss"]
            torch.autograd.backward(self.scaler.scale(value))
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scaler": self.scaler.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the full weights, the optimizer's state (sharded for FSDP1), and the scaler's state."""
        moments = {
            f"{place}.{name}": full(value).detach().cpu().clone()
            for place, state in enumerate(self.optimizer.state.values())
            for name, value in state.items()
        }
        from torch.distributed.fsdp import FullyShardedDataParallel

        whole: Any = FullyShardedDataParallel.summon_full_params if self._one_unit else contextlib.nullcontext
        with whole(self.model):
            weights = {plain(name): full(p).detach().cpu().clone() for name, p in self.model.named_parameters()}
        return {"weights": weights, "moments": moments, "scaler": self.scaler.state_dict()}


def resume(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train four steps; then train two, save them to ``folder``, load them into a second model, and train two more."""
    from torch.distributed import checkpoint as untyped

    checkpoint: Any = untyped

    seed = settings["seed"]
    rows = rows_of(rank.number, realised(seed, rank.device).batch)
    whole = _Training(rank, settings, seed)
    whole.steps(rows, 2)
    folder = settings["folder"]
    with rank.autocast(low_dtype(settings), enabled=settings["within"]):
        checkpoint.save(whole.state(), checkpoint_id=folder)
        saved = whole.checkpoint_state()
        other = _Training(rank, settings, seed + 1)
        # A state to load into: the optimizer creates it in its first step.
        other.steps(rows, 1)
        state = other.state()
        checkpoint.load(state, checkpoint_id=folder)
        other.load(state)
        loaded = other.checkpoint_state()
    for training in (whole, other):
        training.steps(rows, 2)
    return {"saved": saved, "loaded": loaded, "whole": whole.checkpoint_state(), "resumed": other.checkpoint_state()}


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
    answers = ranks.ask(resume, settings(amp, **arguments))
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
