"""Optimizers over ranks: sharded states and averaged weights are bitwise equal to those of float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.torch_private import recorded_collectives

from .expectations import expect_ranks_agree, expect_same, settings
from .models import Keeping, mean, realised, state_of
from .programs import low_dtype, model_and_rows, on_cpu, sent
from .ranks_ddp import wrapped
from .training import train_in_one_process, train_steps


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train some steps under DDP; each rank has the optimizer's state of a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, rows = model_and_rows(rank, settings)
    if settings.get("overflow"):
        rows = {**rows, "overflow": torch.tensor(rank.number == 1)}
    parallel = wrapped(model, rank, {})
    optimizer = ZeroRedundancyOptimizer(
        parallel.parameters(),
        torch.optim.AdamW,
        parameters_as_bucket_view=settings["views"],
        lr=1e-2,
        foreach=False,
    )
    with recorded_collectives() as calls:
        trained = train_steps(parallel, rows, rank.device, low_dtype(settings), settings, optimizer=optimizer)
    # The first rank has the full state, gathered from the other ranks.
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if rank.number == 0 else {}
    whole = {f"{place}.{name}": value for place, values in state.items() for name, value in values.items()}
    return {**trained, "state": on_cpu(whole), "sent": sent(calls)}


def average(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Average each rank's weights at every second call, in a region: the weights after each call."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = Keeping(settings["seed"], rank.number).to(rank.device)
    averager = PeriodicModelAverager(period=2)
    model.weight.grad = torch.zeros_like(model.weight)  # the remaining weights are not averaged
    averages = []
    with recorded_collectives() as calls, rank.autocast(low_dtype(settings)):
        for time in range(3):
            if time == 1:
                with torch.no_grad():
                    model.weight.copy_(state_of(settings["seed"], rank.number + 1)["weight"])
            averager.average_parameters(model.parameters())
            averages.append(model.weight.detach().cpu().clone())
    return {"weights": averages, "sent": sent(calls)}


@pytest.mark.parametrize(
    ("views", "overflow"),
    [
        pytest.param(False, False, id="parameters-clean"),
        pytest.param(False, True, id="parameters-overflow", marks=pytest.mark.amp_long),
        pytest.param(True, False, id="bucket views-clean", marks=pytest.mark.amp_long),
        pytest.param(True, True, id="bucket views-overflow"),
    ],
)
def test_a_state_in_parts_is_that_of_one_process(
    amp: SuiteAmp, ranks: RankGroup, *, views: bool, overflow: bool
) -> None:
    """Run ZeroRedundancyOptimizer around AdamW, with a scaler, under DDP: losses, scales, weights, whole state."""
    arguments = settings(amp, views=views, overflow=overflow)
    answers = ranks.ask(train, arguments)
    instance = realised(amp.config.seed, amp.device.torch_device)
    expected = train_in_one_process(instance.model, instance.batch, amp.device.torch_device, amp.dtype, arguments)
    expect_ranks_agree(amp, answers, "weights", subject="ZeroRedundancyOptimizer")
    expect_same(amp, answers[0]["weights"], expected["weights"], subject="ZeroRedundancyOptimizer")
    expect_same(amp, answers[0]["state"], expected["state"], subject="ZeroRedundancyOptimizer's state")
    for number, answer in enumerate(answers):
        assert answer["kept"] == ["float32"], f"rank {number} keeps {answer['kept']}"
        assert answer["moved"] == [True, not overflow, True, True]
        assert answer["losses"] == [step[number] for step in expected["losses"]], f"the losses of rank {number} differ"
        assert answer["scales"][-1] == expected["scale"]
        sent = {dtype for _, *dtypes in answer["sent"] for dtype in dtypes}
        assert sent == {"float32"}, f"gradients and weights are sent as {sorted(sent)}"


def test_weights_are_averaged_in_float32(amp: SuiteAmp, ranks: RankGroup) -> None:
    """PeriodicModelAverager in a region averages over ranks at every second call; else ranks keep their weights."""
    seed = amp.config.seed
    weights = [[{"weight": state_of(seed, number + later)["weight"]} for number in range(2)] for later in range(2)]
    for number, answer in enumerate(ranks.ask(average, settings(amp))):
        whole = mean(weights[0])["weight"]
        expected = [whole, weights[1][number]["weight"], mean(weights[1])["weight"]]
        for time, (actual, value) in enumerate(zip(answer["weights"], expected, strict=True)):
            assert actual.dtype is torch.float32
            assert torch.equal(actual, value), f"the weights of rank {number} differ after {time + 1} averages"
        assert {tuple(call) for call in answer["sent"]} == {("all_reduce", "float32")}
