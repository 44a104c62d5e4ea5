"""Compression hooks: messages are low-precision, divided before they are summed; results are float32."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from . import ranks_ddp
from .expectations import expect_near_exact, expect_ranks_agree, expect_same, settings
from .models import manual_gradients, mean, whole

#: A bf16 hook exceeds fp16's own noise, so the error bound says nothing about it; its bits are compared.
_COARSER = ("fp16", "bf16")
_HOOKS = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("hook", _HOOKS)
def test_a_hook_sends_its_dtype(amp: SuiteAmp, ranks: RankGroup, hook: str) -> None:
    """Each rank's gradient is rounded, halved and added in the hook's dtype, and is float32 again, bit for bit."""
    answers = ranks.ask(ranks_ddp.step, settings(amp, hook=hook))
    dtype = dtype_name(_HOOKS[hook])
    for number, answer in enumerate(answers):
        assert answer["sent"], f"rank {number} sent nothing"
        assert {tuple(call) for call in answer["sent"]} == {("all_reduce", dtype)}
        assert {value.dtype for value in answer["gradients"].values()} == {torch.float32}
    expect_ranks_agree(amp, answers, "gradients", subject=f"{hook} hook")
    expected = mean(manual_gradients(amp.config.seed, amp.device.torch_device, amp.autocast), _HOOKS[hook])
    expect_same(amp, answers[0]["gradients"], expected, subject=f"{hook} hook", least=_least(hook))


def _least(hook: str) -> float:
    """Return one step of fp16's subnormals: halves of its smallest values round again, as often as the hook chooses."""
    return 2.0**-24 if hook == "fp16" else 0.0


@pytest.mark.amp_parametrize(
    "hook", lambda target: [name for name in _HOOKS if (target.precision.name, name) != _COARSER]
)
def test_what_a_hook_loses_is_one_more_rounding(amp: SuiteAmp, ranks: RankGroup, hook: str) -> None:
    """Compare with float64: twice the noise of one process, where the hook's format is no coarser than autocast's."""
    answers = ranks.ask(ranks_ddp.step, settings(amp, hook=hook))
    expect_near_exact(amp, whole(f"ddp-{hook}"), answers[0]["gradients"], loss=None, subject=f"{hook} hook")


@pytest.mark.parametrize("hook", [None, *_HOOKS], ids=["none", *_HOOKS])
def test_gradients_are_divided_before_they_are_summed(amp: SuiteAmp, ranks: RankGroup, hook: str | None) -> None:
    """Reduce 40000 on each of two ranks: fp16 represents the mean, but not the sum."""
    size = 40000.0
    for number, answer in enumerate(ranks.ask(ranks_ddp.large_gradients, settings(amp, hook=hook, size=size))):
        actual = answer["gradients"]["weight"]
        expected = torch.tensor(size).to(_HOOKS.get(hook or "", torch.float32)).float()
        if not torch.equal(actual, expected.expand(4, 4)):
            raise AmpFailure(
                f"{size:g} on both ranks becomes {float(actual[0, 0])} on rank {number} with the hook {hook}",
                label_before="rule",
                before=f"{float(expected):g}: the mean, of values that are divided before they are summed",
                now=str(float(actual[0, 0])),
                likely="the hook sums first: beyond 65504 that is infinity in fp16"
                if not math.isfinite(float(actual[0, 0]))
                else "the hook forgets the division, or divides twice",
            )


def test_a_low_models_buckets_are_divided_first_too(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Without a hook the buckets have the parameters' dtype: a model in fp16 must not overflow in the sum."""
    size = 40000.0
    for answer in ranks.ask(ranks_ddp.low_model, settings(amp, size=size)):
        assert answer["sent"]
        assert {tuple(call) for call in answer["sent"]} == {("all_reduce", amp.precision.dtype_name)}
        expected = torch.full((4, 4), size, dtype=amp.dtype)
        assert torch.equal(answer["gradients"]["weight"], expected)


def test_what_overflows_in_a_hook_arrives_as_infinity(amp: SuiteAmp, ranks: RankGroup) -> None:
    """100000 overflows fp16 to infinity; a saturated value would hide the overflow from every scaler."""
    for answer in ranks.ask(ranks_ddp.large_gradients, settings(amp, hook="fp16", size=1e5)):
        actual = answer["gradients"]["weight"]
        assert bool(actual.isinf().all()), f"a gradient of 1e5 arrives as {float(actual[0, 0])}, and no scaler sees it"
