"""DistributedDataParallel under autocast: two ranks have the gradients of one process, sent in float32."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target

from . import ranks_ddp
from .expectations import expect_near_exact, expect_ranks_agree, expect_same, settings
from .models import LATER, manual_gradients, mean, realised, state_of, whole
from .training import train_in_one_process

_OPTIONS = {
    "plain": {},
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    # Otherwise the first iteration has one bucket, whatever its cap is.
    "small buckets": {"bucket_cap_mb": 0.001, "find_unused_parameters": True},
    "unused parameters": {"find_unused_parameters": True},
}


@pytest.mark.parametrize("options", _OPTIONS)
def test_gradients_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup, options: str) -> None:
    """Gradients are float32, the same on every rank, and bitwise equal to the mean of the ranks' own gradients."""
    answers = ranks.ask(ranks_ddp.step, settings(amp, options=_OPTIONS[options]))
    expect_ranks_agree(amp, answers, "gradients", subject=f"DDP, {options}")
    expected = mean(manual_gradients(amp.config.seed, amp.device.torch_device, amp.autocast))
    expect_same(amp, answers[0]["gradients"], expected, subject=f"DDP, {options}")


def test_gradients_and_loss_are_near_those_of_the_whole_batch(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Compare with float64 in one process, within the oracle's bound; the loss is the mean of the ranks' losses."""
    answers = ranks.ask(ranks_ddp.step, settings(amp))
    loss = sum(answer["loss"] for answer in answers) / len(answers)
    expect_near_exact(amp, whole("ddp"), answers[0]["gradients"], loss=loss, subject="DDP")


@pytest.mark.parametrize("options", ["plain", "small buckets"])
def test_gradients_travel_in_float32(amp: SuiteAmp, ranks: RankGroup, options: str) -> None:
    """Low-precision gradients are float32 before they are sent, so that the sum over ranks is not rounded."""
    for number, answer in enumerate(ranks.ask(ranks_ddp.step, settings(amp, options=_OPTIONS[options]))):
        sent = answer["sent"]
        if not sent or any(call != ["all_reduce", "float32"] for call in sent):
            raise AmpFailure(
                f"DDP on rank {number} of {amp.target.id} does not reduce gradients in float32",
                label_before="rule",
                before="all_reduce of float32 buckets, and nothing else, in backward",
                now=str(sent) if sent else "nothing was sent",
                likely="a compression hook is registered by default, or the bucket has the dtype of the region",
            )
    assert (len(sent) > 1) == (options == "small buckets"), f"{len(sent)} buckets"
    amp.observe(f"DDP/{options}/reductions", len(sent), kind="count", unit="collectives")


def test_every_rank_computes_in_the_region(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Autocast is on inside the wrapped module in every process, and a linear layer returns its dtype."""
    for number, answer in enumerate(ranks.ask(ranks_ddp.step, settings(amp))):
        if answer["autocast"] != [[True, amp.precision.dtype_name]]:
            raise AmpFailure(
                f"on rank {number} of {amp.target.id} the model that DDP wraps is not in the region around it",
                label_before="rule",
                before=f"autocast on, a linear layer returns {amp.precision.dtype_name}",
                now=f"autocast {answer['autocast']}",
                likely="DDP or a hook leaves the region, or that process never entered it",
            )


@pytest.mark.parametrize("options", _OPTIONS)
def test_a_training_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, options: str) -> None:
    """Train four steps of AdamW with a scaler: losses, scale and weights are bitwise equal, and all state is float32.

    Buckets are rebuilt after the first step, and a static graph is reduced differently from then on.
    """
    arguments = settings(amp, options=_OPTIONS[options])
    answers = ranks.ask(ranks_ddp.train, arguments)
    instance = realised(amp.config.seed, amp.device.torch_device)
    expected = train_in_one_process(instance.model, instance.batch, amp.device.torch_device, amp.dtype, arguments)
    expect_ranks_agree(amp, answers, "weights", subject="DDP, training")
    for number, answer in enumerate(answers):
        assert answer["kept"] == ["float32"], f"rank {number} keeps {answer['kept']}"
        assert all(answer["moved"])
        assert answer["losses"] == [step[number] for step in expected["losses"]], f"the losses of rank {number} differ"
        assert answer["scales"][-1] == expected["scale"]
    expect_same(amp, answers[0]["weights"], expected["weights"], subject="DDP, training")


def test_every_bit_of_the_first_ranks_state_is_sent(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Weights and buffers at DDP's creation, and buffers before each forward pass, are sent unrounded."""
    answers = ranks.ask(ranks_ddp.state, settings(amp))
    first, later = (state_of(amp.config.seed, number) for number in (0, LATER))
    for number, answer in enumerate(answers):
        expect_same(amp, answer["made"], first, subject=f"DDP, created on rank {number}")
        buffers = {name: value for name, value in later.items() if name != "weight"}
        expect_same(amp, answer["buffers"], buffers, subject=f"DDP, buffers of rank {number} in a forward pass")
        floating = {dtype for _, *dtypes in answer["sent"] for dtype in dtypes}
        assert floating == {"float16", "float32", "float64"}, f"buffers are sent as {floating}"


def _batch_norms(target: Target) -> list[str]:
    """Return the batch norms of a target; SyncBatchNorm is for accelerators only."""
    return ["batch_norm"] if target.device.type == "cpu" else ["batch_norm", "sync_batch_norm"]


@pytest.mark.amp_parametrize("kind", _batch_norms)
def test_statistics_stay_float32(amp: SuiteAmp, ranks: RankGroup, kind: str) -> None:
    """Running statistics under autocast are float32, with float32's values, on each rank."""
    synchronised = kind == "sync_batch_norm"
    answers = ranks.ask(ranks_ddp.statistics, settings(amp, synchronised=synchronised))
    for answer in answers:
        buffers = answer["buffers"]
        for name in ("1.running_mean", "1.running_var"):
            assert buffers[name].dtype is torch.float32
            amp.check_fp32(buffers[name], name=name)
        assert int(buffers["1.num_batches_tracked"]) == 2
        assert answer["outputs"].dtype in {amp.dtype, torch.float32}
    if synchronised:
        expect_ranks_agree(amp, answers, "buffers", subject="SyncBatchNorm")
