"""Sharded models: clipping uses the norm of the full gradients, and a full state dict equals the shards bitwise."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_clipping
from .expectations import expect_ranks_agree, needs_streams, settings

KINDS = pytest.mark.parametrize("one_unit", [False, True], ids=["FSDP2", "FSDP1"])
#: Maximum norm, small enough that every step exceeds it.
MOST = 2.0**-6
#: Relative tolerance of a float32 sum of some thousand squares, and of a division.
NEAR = 2.0**-18


@KINDS
@pytest.mark.parametrize("norm_type", ["2", "inf"])
def test_clipping_is_by_the_norm_of_all_shards(
    amp: SuiteAmp, ranks: RankGroup, norm_type: str, *, one_unit: bool
) -> None:
    """The norm is that of all shards, in float32; clipping multiplies every gradient by the same factor."""
    if not one_unit:
        needs_streams(amp)
    answers = ranks.ask(ranks_clipping.clip, settings(amp, one_unit=one_unit, most=MOST, norm_type=norm_type))
    for answer in answers:
        whole = torch.cat([x.double().flatten() for x in answer["before"].values()])
        norm = float(torch.linalg.vector_norm(whole, float(norm_type)))
        assert answer["dtype"] == "torch.float32"
        assert norm > MOST, "there is nothing to clip"
        assert answer["norm"] == pytest.approx(norm, rel=NEAR)
        for name, value in answer["before"].items():
            clipped = value * (MOST / norm)
            # torch adds 1e-6 to the norm before it divides by it.
            torch.testing.assert_close(answer["after"][name], clipped, rtol=NEAR + 2e-6 / norm, atol=0.0)
    expect_ranks_agree(amp, answers, "after", subject="clipped gradients")


@KINDS
@pytest.mark.parametrize("region", [False, True], ids=["outside", "in a region"])
def test_a_whole_state_dict_has_the_bits_of_the_shards(
    amp: SuiteAmp, ranks: RankGroup, *, one_unit: bool, region: bool
) -> None:
    """The full state dict of a sharded model equals that of the original model, dtypes and bits included."""
    if not one_unit:
        needs_streams(amp)
    for answer in ranks.ask(ranks_clipping.states, settings(amp, one_unit=one_unit, region=region)):
        assert answer["found"].keys() == answer["made"].keys()
        unlike = [
            name
            for name, value in answer["made"].items()
            if answer["found"][name].dtype is not value.dtype or not torch.equal(answer["found"][name], value)
        ]
        assert not unlike, f"the whole state dict has others of {', '.join(unlike)}"
