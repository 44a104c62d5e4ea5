"""Collectives called inside a region: data of every dtype arrives unchanged, sums round once, gradients are exact."""

from __future__ import annotations

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup
from pytest_amp.failure import AmpFailure

from . import ranks_collectives
from .expectations import expect_same, settings
from .models import SIZE


def test_every_bit_arrives(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Send float32, float64, fp16, bf16 and integers: autocast casts no message, and each sum is rounded once."""
    for number, answer in enumerate(ranks.ask(ranks_collectives.collect, settings(amp))):
        for name, (_, expected) in ranks_collectives.COLLECTIVES.items():
            for dtype in ranks_collectives.DTYPES:
                both = [ranks_collectives.numbers(amp.config.seed, rank, dtype) for rank in range(SIZE)]
                actual, correct = answer[name][str(dtype)], expected(*both)
                if actual.dtype is not dtype or not torch.equal(actual, correct):
                    raise AmpFailure(
                        f"{name} of {dtype} in a region of {amp.target.id} has different bits on rank {number}",
                        label_before="rule",
                        before=f"{dtype}, norm {float(correct.double().norm()):.6g}",
                        now=f"{actual.dtype}, error {float((actual.double() - correct.double()).abs().max()):.3g}",
                        likely="a region casts a message before or after it is sent",
                    )


def test_gradients_go_back_through_them(amp: SuiteAmp, ranks: RankGroup) -> None:
    """``torch.distributed.nn`` sums the incoming gradients of all ranks, in float32."""
    numbers = [ranks_collectives.numbers(amp.config.seed, rank, torch.float32) for rank in range(SIZE)]
    first, second = (ranks_collectives.factors(rank) for rank in range(SIZE))
    expected = {"result": numbers[0] + numbers[1], "gradient": first + second}
    for number, answer in enumerate(ranks.ask(ranks_collectives.differentiate, settings(amp))):
        for name, gradient in answer.items():
            expect_same(amp, gradient, expected, subject=f"{name} on rank {number}")
