"""FSDP1's ``MixedPrecision``: dtypes of gathering, computation and reduction; float32 master weights; buffers."""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_fsdp
from .expectations import expect_near_exact, expect_ranks_agree, expect_same, settings
from .models import realised, whole
from .policies import POLICIES, Policy, expect_sent
from .training import train_in_one_process

#: FSDP1 has no dtype of outputs.
_POLICIES = {name: policy for name, policy in POLICIES.items() if policy.output is None}


@pytest.fixture(autouse=True)
def _there(ranks: RankGroup) -> None:
    """Skip these tests on releases of torch without FSDP1."""
    assert ranks
    from torch.distributed import fsdp

    if not hasattr(fsdp, "FullyShardedDataParallel"):
        pytest.skip("this torch has no FSDP1")


def _settings(amp: SuiteAmp, policy: Policy) -> dict[str, object]:
    return settings(amp, policy=policy.requested(amp), region=policy.region)


@pytest.mark.parametrize("name", _POLICIES)
def test_what_is_sent_and_computed(amp: SuiteAmp, ranks: RankGroup, name: str) -> None:
    """Observe dtypes at the process group and in a layer; parameters and gradients of shards are float32."""
    policy = _POLICIES[name]
    gathered = policy.gathered(amp)
    for number, answer in enumerate(ranks.ask(ranks_fsdp.step_of_one_unit, _settings(amp, policy))):
        expect_sent(amp, answer, policy, subject=f"FSDP1 ({name}) on rank {number}")
        assert answer["layer"]["weight"] == gathered
        assert answer["output"] == policy.returned(amp)
        assert answer["parameters"] == ["float32"]
        assert answer["shards"] == ["float32"]


@pytest.mark.parametrize("name", _POLICIES)
def test_gradients_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup, name: str) -> None:
    """Compare with manual casts of weights, each rank's rows, and the mean in the reduction's dtype: the same bits."""
    policy = _POLICIES[name]
    answers = ranks.ask(ranks_fsdp.step_of_one_unit, _settings(amp, policy))
    expect_ranks_agree(amp, answers, "gradients", subject=f"FSDP1 ({name})")
    least = 2.0**-23 if policy.reduced(amp) == "float16" else 0.0
    expect_same(amp, answers[0]["gradients"], policy.gradients(amp), subject=f"FSDP1 ({name})", least=least)


def test_gradients_and_loss_are_near_those_of_the_whole_batch(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Compare autocast with float64 in one process, within the oracle's bound."""
    answers = ranks.ask(ranks_fsdp.step_of_one_unit, _settings(amp, _POLICIES["autocast"]))
    loss = sum(answer["loss"] for answer in answers) / len(answers)
    expect_near_exact(amp, whole("fsdp1"), answers[0]["gradients"], loss=loss, subject="FSDP1")


@pytest.mark.parametrize("overflow", [False, True], ids=["clean", "overflow"])
def test_a_training_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, *, overflow: bool) -> None:
    """Train four steps of AdamW on shards, under autocast, with ShardedGradScaler: each rank's losses, bit for bit."""
    arguments = {**_settings(amp, _POLICIES["autocast"]), "overflow": overflow}
    instance = realised(amp.config.seed, amp.device.torch_device)
    expected = train_in_one_process(instance.model, instance.batch, amp.device.torch_device, amp.dtype, arguments)
    for number, answer in enumerate(ranks.ask(ranks_fsdp.train_one_unit, arguments)):
        assert answer["losses"] == [step[number] for step in expected["losses"]], f"the losses of rank {number} differ"
        assert answer["moved"] == [True, not overflow, True, True]
        assert answer["scales"][-1] == expected["scale"]
        assert answer["kept"] == ["float32"]


@pytest.mark.parametrize("dtype", ["float32", "low", None], ids=["float32", "low", "not asked"])
def test_buffers_have_the_dtype_that_is_asked_for(amp: SuiteAmp, ranks: RankGroup, dtype: str | None) -> None:
    """A float table is float32 unless the policy says otherwise; a counter stays an integer."""
    expected = amp.precision.dtype_name if dtype == "low" else "float32"
    policy = {"param_dtype": None, "reduce_dtype": None, "buffer_dtype": expected if dtype else None}
    for answer in ranks.ask(ranks_fsdp.buffers, settings(amp, unit="FSDP1", policy=policy)):
        assert answer["counter"] == "int64"
        assert answer["seen"] == [expected]
