"""Uneven inputs: a rank without batches sends zeros, in float32, and ends with the same weights as the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.torch_private import recorded_collectives

from .expectations import expect_ranks_agree, expect_same, settings
from .models import SIZE, Tensors, gradients, loss, realised, rows_of
from .programs import low_dtype, model_and_rows, on_cpu, sent
from .ranks_accumulation import micro_batch
from .ranks_ddp import wrapped

#: Number of batches of each rank.
BATCHES = (3, 1)
RATE, MOMENTUM = 0.5, 0.5


def batches_of(number: int, rows: Mapping[str, torch.Tensor]) -> list[Tensors]:
    """Return a rank's batches."""
    return [micro_batch(rows, index, 3) for index in range(BATCHES[number])]


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train SGD with momentum over all batches of a rank; return the losses, the final weights and the collectives."""
    model, rows = model_and_rows(rank, settings)
    parallel = wrapped(model, rank, {})
    optimizer = torch.optim.SGD(parallel.parameters(), lr=RATE, momentum=MOMENTUM, foreach=False)
    losses = []
    every = settings["divide_by_initial_world_size"]
    with recorded_collectives() as calls, parallel.join(divide_by_initial_world_size=every):
        for batch in batches_of(rank.number, rows):
            optimizer.zero_grad()
            with rank.autocast(low_dtype(settings)):
                value = loss(parallel, batch)["loss"]
            torch.autograd.backward(value)
            optimizer.step()
            losses.append(float(value.detach()))
    weights = {name.removeprefix("module."): p.detach() for name, p in parallel.named_parameters()}
    return {"losses": losses, "weights": on_cpu(weights), "sent": sent(calls)}


@pytest.mark.parametrize("every", [True, False], ids=["divided by all", "divided by who is left"])
def test_a_training_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, *, every: bool) -> None:
    """``join`` under autocast: losses and final weights of every rank, bit for bit; messages are float32 only."""
    arguments = settings(amp, divide_by_initial_world_size=every)
    answers = ranks.ask(train, arguments)
    losses, weights = _in_one_process(amp, every=every)
    expect_ranks_agree(amp, answers, "weights", subject="uneven inputs")
    expect_same(amp, answers[0]["weights"], weights, subject="uneven inputs")
    for number, answer in enumerate(answers):
        assert answer["losses"] == losses[number], f"the losses of rank {number} differ"
        assert {dtype for _, *dtypes in answer["sent"] for dtype in dtypes} == {"float32"}


def _in_one_process(amp: SuiteAmp, *, every: bool) -> tuple[list[list[float]], Tensors]:
    """Return the mean over all ranks, or over those that have batches left."""
    instance = realised(amp.config.seed, amp.device.torch_device)
    optimizer = torch.optim.SGD(instance.model.parameters(), lr=RATE, momentum=MOMENTUM, foreach=False)
    batches = [batches_of(number, rows_of(number, instance.batch)) for number in range(SIZE)]
    losses: list[list[float]] = [[] for _ in range(SIZE)]
    for step in range(max(BATCHES)):
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
