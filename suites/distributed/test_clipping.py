"""Sharded models: clipping uses the norm of the full gradients, and a full state dict equals the shards bitwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup

from .expectations import expect_ranks_agree, needs_streams, settings
from .models import backward, gradients
from .programs import low_dtype, model_and_rows, on_cpu
from .ranks_fsdp import gathered, sharded, wrapped


def clip(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step under autocast with FSDP2 or FSDP1; return the norm, and gradients before and after clipping."""
    model, rows = model_and_rows(rank, settings)
    one_unit = settings["one_unit"]
    parallel: Any = (wrapped if one_unit else sharded)(model, rank, {})
    backward(parallel, rows, lambda: rank.autocast(low_dtype(settings)))

    def whole() -> dict[str, torch.Tensor]:
        return gathered(parallel) if one_unit else on_cpu(gradients(parallel))

    before = whole()
    most, kind = settings["most"], float(settings["norm_type"])
    if one_unit:
        norm = parallel.clip_grad_norm_(most, kind)
    else:
        norm = nn.utils.clip_grad_norm_(parallel.parameters(), most, kind).full_tensor()  # type: ignore[attr-defined]
    return {"before": before, "norm": float(norm), "dtype": str(norm.dtype), "after": whole()}


def states(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full state dict of a sharded model, and the state dict from before it was sharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model, _ = model_and_rows(rank, settings)
    whole = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    parallel: Any = (wrapped if settings["one_unit"] else sharded)(model, rank, {})
    with rank.autocast(low_dtype(settings), enabled=settings["region"]):
        gathered_state = get_model_state_dict(parallel, options=StateDictOptions(full_state_dict=True))
    return {"made": whole, "found": on_cpu(gathered_state)}


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
    answers = ranks.ask(clip, settings(amp, one_unit=one_unit, most=MOST, norm_type=norm_type))
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
    for answer in ranks.ask(states, settings(amp, one_unit=one_unit, region=region)):
        assert answer["found"].keys() == answer["made"].keys()
        unlike = [
            name
            for name, value in answer["made"].items()
            if answer["found"][name].dtype is not value.dtype or not torch.equal(answer["found"][name], value)
        ]
        assert not unlike, f"the whole state dict has others of {', '.join(unlike)}"
