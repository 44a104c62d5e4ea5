"""``update``: growth of the scale, backoff, and their limits."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import UpdateRule

from .training import INF, NAN, ScalerFactory, training


def _expect(amp: SuiteAmp, fact: str, actual: list[tuple[float, int]], expected: list[tuple[float, int]]) -> None:
    """Record a sequence of scales and trackers; raise AmpFailure at the first wrong one."""
    amp.observe(fact, [[scale, tracker] for scale, tracker in actual], kind="state")
    for step, (real, correct) in enumerate(zip(actual, expected, strict=True)):
        if real != correct:
            raise AmpFailure(
                f"after step {step} of '{fact}' the scale is {real[0]} and the growth tracker {real[1]}",
                label_before="rule",
                before=f"scale {correct[0]}, tracker {correct[1]} (pytest_amp/scaler/reference.py, UpdateRule)",
                now=f"scale {real[0]}, tracker {real[1]} on torch {torch.__version__}, {amp.device.describe()}",
                likely="_amp_update_scale_ follows another rule",
            )


def test_the_scale_grows_after_exactly_the_interval(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The scale does not grow one clean step earlier, and grows again after the same number of steps."""
    run = training(amp, amp_scaler(init_scale=8.0, growth_interval=3))
    actual = [run.iterate() for _ in range(7)]
    _expect(amp, "growth", actual, [(8, 1), (8, 2), (16, 0), (16, 1), (16, 2), (32, 0), (32, 1)])


def test_a_long_interval_is_counted_to_its_end(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The tracker is an int32: it counts beyond 256 clean steps, and beyond the integers of bf16 and fp16."""
    run = training(amp, amp_scaler(init_scale=8.0, growth_interval=2100))
    scale, tracker = run.iterate()
    state = run.scaler.state_dict()
    run.scaler.load_state_dict({**state, "_growth_tracker": 2097})
    actual = [(scale, tracker), *(run.iterate() for _ in range(4))]
    _expect(amp, "a long interval", actual, [(8, 1), (8, 2098), (8, 2099), (16, 0), (16, 1)])


@pytest.mark.parametrize("bad", [INF, -INF, NAN], ids=["inf", "minus inf", "nan"])
def test_the_scale_backs_off_at_once(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float) -> None:
    """Each overflow backs off, and restarts the count of clean steps, which have to be consecutive."""
    run = training(amp, amp_scaler(init_scale=64.0, growth_interval=3))
    plan = [None, None, bad, None, None, bad, bad, None, None, None]
    actual = [run.iterate(step) for step in plan]
    expected = [(64, 1), (64, 2), (32, 0), (32, 1), (32, 2), (16, 0), (8, 0), (8, 1), (8, 2), (16, 0)]
    _expect(amp, f"backoff on {bad}", actual, [(float(scale), tracker) for scale, tracker in expected])


def test_other_factors_are_obeyed(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Products are float64 and the scale is float32: the factors are not powers of two, so that rounding shows."""
    rule = UpdateRule(growth_factor=1.7, backoff_factor=0.3, growth_interval=2)
    scaler = amp_scaler(init_scale=1.1, growth_factor=1.7, backoff_factor=0.3, growth_interval=2)
    run = training(amp, scaler)
    run.plant()
    state = run.state
    actual, expected = [], []
    for bad in (False, False, False, True, False, False, True, True, False, False):
        run.plant(INF if bad else 1.0)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        state = rule.after(*state, found_inf=bad)
        actual.append(run.state)
        expected.append(state)
    _expect(amp, "odd factors", actual, expected)


def test_setters_take_effect_at_the_next_update(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0, growth_interval=100))
    run.scaler.set_growth_factor(4.0)
    run.scaler.set_backoff_factor(0.125)
    run.scaler.set_growth_interval(1)
    getters = run.scaler.get_growth_factor(), run.scaler.get_backoff_factor(), run.scaler.get_growth_interval()
    assert getters == (4.0, 0.125, 1)
    _expect(amp, "setters", [run.iterate(), run.iterate(INF)], [(32.0, 0), (4.0, 0)])


def test_a_lowered_interval_still_grows(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0, growth_interval=100))
    for _ in range(5):
        run.iterate()
    run.scaler.set_growth_interval(3)
    scales = [run.iterate()[0] for _ in range(6)]
    assert max(scales) > 8.0


def test_growth_stops_at_the_largest_finite_scale(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The scale stays finite, unlike in torch 2.0, and the count restarts (pytorch/pytorch#98828)."""
    run = training(amp, amp_scaler(init_scale=2.0**125, growth_interval=1))
    actual = []
    for _ in range(5):
        run.plant(2.0**-125)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        actual.append(run.state)
    top = 2.0**127
    _expect(amp, "cap", actual, [(2.0**126, 0), (top, 0), (top, 0), (top, 0), (top, 0)])


def test_backoff_ends_at_zero(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Current behaviour of torch: nothing keeps the scale above 0 (pytorch/pytorch#98828)."""
    run = training(amp, amp_scaler(init_scale=2.0**-148))
    actual = []
    for _ in range(3):
        run.plant(INF)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        actual.append(run.state)
    _expect(amp, "floor", actual, [(2.0**-149, 0), (0.0, 0), (0.0, 0)])


def test_a_scale_of_zero_corrupts_no_parameter(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=0.0))
    run.iterate()
    assert bool(run.parameter.isfinite().all())


@pytest.mark.parametrize("form", ["float", "tensor", "float64 tensor"])
def test_a_new_scale_is_taken(amp: SuiteAmp, amp_scaler: ScalerFactory, form: str) -> None:
    """A new scale replaces the rule for one update: no growth, no backoff, and the count stays."""
    run = training(amp, amp_scaler(init_scale=8.0, growth_interval=10))
    run.iterate()
    new: float | torch.Tensor = 3.0
    if form != "float":
        dtype = torch.float64 if form == "float64 tensor" and amp.device.type != "mps" else torch.float32
        new = torch.tensor(3.0, device=amp.device.torch_device, dtype=dtype)
    run.backward(INF)
    run.scaler.step(run.optimizer)
    run.scaler.update(new)
    actual = [run.state]
    if isinstance(new, torch.Tensor):
        new.fill_(5.0)  # "not used directly" (docstring of update)
        actual.append(run.state)
    _expect(amp, f"new scale as {form}", actual, [(3.0, 1)] * len(actual))
    run.backward()
    run.scaler.unscale_(run.optimizer)  # a new iteration: the stage was reset


def test_a_bad_new_scale_is_refused(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward()
    run.scaler.step(run.optimizer)
    device = amp.device.torch_device
    for bad in (torch.ones(2, device=device), torch.ones((), device=device, requires_grad=True)):
        with pytest.raises(AssertionError, match="new_scale should be a float or a 1-element"):
            run.scaler.update(bad)
    assert run.state == (8.0, 0)
