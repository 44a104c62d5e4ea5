"""FSDP2's ``MixedPrecisionPolicy``: dtypes of gathering, computation, reduction and outputs; float32 master weights."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup
from pytest_amp.failure import AmpFailure

from . import ranks_fsdp
from .expectations import expect_near_exact, expect_ranks_agree, expect_same, needs_streams, settings
from .models import WIDTH, realised, whole
from .policies import OF_FSDP2, expect_sent
from .training import train_in_one_process


@pytest.fixture(autouse=True)
def _streams(amp: SuiteAmp) -> None:
    """Skip where a CPU has no streams."""
    needs_streams(amp)


def _settings(amp: SuiteAmp, policy: str, **more: object) -> dict[str, object]:
    return settings(amp, policy=OF_FSDP2[policy].requested(amp), region=OF_FSDP2[policy].region, **more)


@pytest.mark.parametrize("policy", OF_FSDP2)
def test_what_is_sent(amp: SuiteAmp, ranks: RankGroup, policy: str) -> None:
    """Observe the dtypes of every all-gather and every reduce-scatter at the process group."""
    for number, answer in enumerate(ranks.ask(ranks_fsdp.step, _settings(amp, policy))):
        sent = expect_sent(amp, answer, OF_FSDP2[policy], subject=f"FSDP2 ({policy}) on rank {number}")
    amp.observe(f"fsdp2/{policy}/sent", "; ".join(f"{kind} {' '.join(d)}" for kind, d in sent.items()), kind="dtype")


@pytest.mark.parametrize("policy", OF_FSDP2)
def test_what_layers_see_and_what_is_returned(amp: SuiteAmp, ranks: RankGroup, policy: str) -> None:
    """Weights and inputs have the parameters' dtype, the output the requested one; shards stay float32."""
    rule = OF_FSDP2[policy]
    inside = rule.gathered(amp)
    for number, answer in enumerate(ranks.ask(ranks_fsdp.step, _settings(amp, policy))):
        computed = amp.precision.dtype_name if rule.region else inside
        expected = {"weight": inside, "input": inside, "output": computed}
        layer = answer["layer"]
        if layer != expected or answer["output"] != rule.returned(amp):
            raise AmpFailure(
                f"FSDP2 ({policy}) on rank {number} of {amp.target.id} computes or returns another dtype",
                label_before="rule",
                before=f"a layer sees {expected}, the model returns {rule.returned(amp)}",
                now=f"a layer sees {layer}, the model returns {answer['output']}",
                likely="output_dtype or param_dtype is ignored, or inputs are not cast",
            )
        assert answer["parameters"] == ["float32"], f"master weights are {answer['parameters']}"
        assert answer["shards"] == ["float32"], f"gradients of shards are {answer['shards']}"


@pytest.mark.parametrize("policy", OF_FSDP2)
def test_gradients_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup, policy: str) -> None:
    """Compare with manual casts of weights, each rank's rows, and the mean in the reduction's dtype: the same bits."""
    answers = ranks.ask(ranks_fsdp.step, _settings(amp, policy))
    expect_ranks_agree(amp, answers, "gradients", subject=f"FSDP2 ({policy})")
    # Halves of fp16's smallest values are rounded, before the sum or after it.
    least = 2.0**-23 if OF_FSDP2[policy].reduced(amp) == "float16" else 0.0
    expect_same(amp, answers[0]["gradients"], OF_FSDP2[policy].gradients(amp), subject=f"FSDP2 ({policy})", least=least)


def test_gradients_and_loss_are_near_those_of_the_whole_batch(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Compare autocast with float64 in one process, within the oracle's bound."""
    answers = ranks.ask(ranks_fsdp.step, _settings(amp, "autocast"))
    loss = sum(answer["loss"] for answer in answers) / len(answers)
    expect_near_exact(amp, whole("fsdp2"), answers[0]["gradients"], loss=loss, subject="FSDP2")


@pytest.mark.parametrize("policy", ["low, reduced in float32", "autocast"])
def test_a_training_keeps_float32(amp: SuiteAmp, ranks: RankGroup, policy: str) -> None:
    """Parameters, gradients and the optimizer's state are float32, with values that the low dtype cannot represent."""
    for answer in ranks.ask(ranks_fsdp.train, _settings(amp, policy)):
        assert answer["kept"] == ["float32"], f"kept are {answer['kept']}"
        assert all(answer["moved"])
        for name, value in answer["weights"].items():
            if value.numel() > WIDTH * 4:
                amp.check_fp32(value, name=name)
        assert answer["losses"][-1] < answer["losses"][0]


@pytest.mark.parametrize(
    ("overflow", "foreach"),
    [(False, False), (True, False), pytest.param(True, True, marks=pytest.mark.amp_long)],
    ids=["clean", "overflow", "overflow, foreach"],
)
def test_a_training_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, *, overflow: bool, foreach: bool) -> None:
    """Train four steps of AdamW on shards, under autocast, with a scaler: losses and whole weights, bit for bit."""
    arguments = _settings(amp, "autocast", overflow=overflow, foreach=foreach)
    answers = ranks.ask(ranks_fsdp.train, arguments)
    instance = realised(amp.config.seed, amp.device.torch_device)
    expected = train_in_one_process(instance.model, instance.batch, amp.device.torch_device, amp.dtype, arguments)
    for number, answer in enumerate(answers):
        assert answer["losses"] == [step[number] for step in expected["losses"]], f"the losses of rank {number} differ"
        assert answer["moved"] == [True, not overflow, True, True]
    expect_same(amp, answers[0]["weights"], expected["weights"], subject="FSDP2, training")


def test_what_was_frozen_at_first_is_reduced_as_asked(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Evaluate once without gradients, then unfreeze: the reduction still has the requested dtype."""
    for answer in ranks.ask(ranks_fsdp.unfrozen, _settings(amp, "low, reduced in float32")):
        assert {tuple(call) for call in answer["sent"]} == {("reduce_scatter", "float32")}


def test_a_layer_that_is_used_late_is_reduced_with_the_others(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Run two micro-batches with one reduction; the second alone uses one of the layers, like an expert or adapter."""
    answers = ranks.ask(ranks_fsdp.used_late, _settings(amp, "low, reduced in float32"))
    expect_ranks_agree(amp, answers, "gradients", subject="FSDP2, a layer used late")
    assert {value.dtype for value in answers[0]["gradients"].values()} == {torch.float32}


def test_reductions_beside_tensor_parallel_layers_too(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Run a layer norm on parts of a sequence: its gradient is summed over the other mesh, in the requested dtype."""
    for answer in ranks.ask(ranks_fsdp.with_tensor_parallel, _settings(amp, "low, reduced in float32")):
        assert answer["sent"], "nothing was reduced over the other mesh"
        assert {tuple(call) for call in answer["sent"]} == {("all_reduce", "float32")}


def test_buffers_stay_as_they_are(amp: SuiteAmp, ranks: RankGroup) -> None:
    """A policy casts parameters and inputs only: a float table stays float32, and a counter an integer."""
    for answer in ranks.ask(ranks_fsdp.buffers, _settings(amp, "low, reduced in float32", unit="FSDP2")):
        assert answer == {"seen": ["float32"], "counter": "int64"}
