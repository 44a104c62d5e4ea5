"""Optimizers over ranks: sharded states and averaged weights are bitwise equal to those of float32."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_optimizers
from .expectations import expect_ranks_agree, expect_same, settings
from .models import mean, realised, state_of
from .training import train_in_one_process


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
    answers = ranks.ask(ranks_optimizers.train, arguments)
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
    for number, answer in enumerate(ranks.ask(ranks_optimizers.average, settings(amp))):
        whole = mean(weights[0])["weight"]
        expected = [whole, weights[1][number]["weight"], mean(weights[1])["weight"]]
        for time, (actual, value) in enumerate(zip(answer["weights"], expected, strict=True)):
            assert actual.dtype is torch.float32
            assert torch.equal(actual, value), f"the weights of rank {number} differ after {time + 1} averages"
        assert {tuple(call) for call in answer["sent"]} == {("all_reduce", "float32")}
