"""Uneven inputs: a rank without batches sends zeros, in float32, and ends with the same weights as the others."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_uneven
from .expectations import expect_ranks_agree, expect_same, settings
from .models import SIZE, Tensors, gradients, loss, realised, rows_of


@pytest.mark.parametrize("every", [True, False], ids=["divided by all", "divided by who is left"])
def test_a_training_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, *, every: bool) -> None:
    """``join`` under autocast: losses and final weights of every rank, bit for bit; messages are float32 only."""
    arguments = settings(amp, divide_by_initial_world_size=every)
    answers = ranks.ask(ranks_uneven.train, arguments)
    losses, weights = _in_one_process(amp, every=every)
    expect_ranks_agree(amp, answers, "weights", subject="uneven inputs")
    expect_same(amp, answers[0]["weights"], weights, subject="uneven inputs")
    for number, answer in enumerate(answers):
        assert answer["losses"] == losses[number], f"the losses of rank {number} differ"
        assert {dtype for _, *dtypes in answer["sent"] for dtype in dtypes} == {"float32"}


def _in_one_process(amp: SuiteAmp, *, every: bool) -> tuple[list[list[float]], Tensors]:
    """Return the mean over all ranks, or over those that have batches left."""
    instance = realised(amp.config.seed, amp.device.torch_device)
    rate, momentum = ranks_uneven.RATE, ranks_uneven.MOMENTUM
    optimizer = torch.optim.SGD(instance.model.parameters(), lr=rate, momentum=momentum, foreach=False)
    batches = [ranks_uneven.batches_of(number, rows_of(number, instance.batch)) for number in range(SIZE)]
    losses: list[list[float]] = [[] for _ in range(SIZE)]
    for step in range(max(ranks_uneven.BATCHES)):
        parts = []
        for number in range(SIZE):
            if step < len(batches[number]):
                optimizer.zero_grad()
                with amp.autocast():
                    value = loss(instance.model, batches[number][step])["loss"]
                torch.autograd.backward(value)
                losses[number].append(float(value.detach()))
                parts.append(gradients(instance.model))
        count = SIZE if every else len(parts)
        for name, parameter in instance.model.named_parameters():
            divided = [part[name] / count for part in parts]
            parameter.grad = divided[0] + divided[1] if len(divided) == SIZE else divided[0]
        optimizer.step()
    return losses, {name: p.detach().cpu().clone() for name, p in instance.model.named_parameters()}
