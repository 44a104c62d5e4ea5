"""Order of calls: which orders are errors, of which type, in the words that users search for."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import ScalerFactory, training

#: Calls after ``scale(loss).backward()``; the last one is an error if the table says so.
ORDERS: dict[str, tuple[type[Exception], str] | None] = {
    "step update": None,
    "unscale_ step update": None,
    "unscale_ update": None,
    "unscale_ step update unscale_ step update": None,
    "unscale_ unscale_": (RuntimeError, "unscale_() has already been called on this optimizer since the last update()"),
    "step step": (RuntimeError, "step() has already been called since the last update()"),
    "unscale_ step step": (RuntimeError, "step() has already been called since the last update()"),
    "step unscale_": (RuntimeError, "unscale_() is being called after step()"),
    "unscale_ step unscale_": (RuntimeError, "unscale_() is being called after step()"),
    "update": (AssertionError, "No inf checks were recorded prior to update"),
    "step update update": (AssertionError, "No inf checks were recorded prior to update"),
}


def _outcome(raised: BaseException | None) -> str:
    return "no error" if raised is None else f"{type(raised).__name__}: {raised}"


def _expect_error(
    amp: SuiteAmp, calls: str, raised: BaseException | None, expected: tuple[type[Exception], str] | None
) -> None:
    """Record the error; raise AmpFailure if it is a different one or missing."""
    amp.observe(f"order: {calls}", type(raised).__name__ if raised else "no error", kind="state")
    right = raised is None if expected is None else type(raised) is expected[0] and expected[1] in str(raised)
    if not right:
        raise AmpFailure(
            f"the calls '{calls}' on {amp.target.id} end otherwise than they have to",
            label_before="rule",
            before="no error" if expected is None else f"{expected[0].__name__}: {expected[1]}",
            now=" ".join(_outcome(raised).split()),
            likely="the stage of an optimizer (torch/amp/grad_scaler.py, OptState) is not kept or not checked",
        )


@pytest.mark.parametrize("calls", ORDERS)
def test_the_order_of_calls(amp: SuiteAmp, amp_scaler: ScalerFactory, calls: str) -> None:
    """Check each order: unscaling twice divides twice (huggingface/accelerate#641, huggingface/transformers#23905)."""
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward()
    raised: BaseException | None = None
    try:
        for call in calls.split():
            getattr(run.scaler, call)(*(() if call == "update" else (run.optimizer,)))
    except (RuntimeError, AssertionError) as error:
        raised = error
    _expect_error(amp, calls, raised, ORDERS[calls])


@pytest.mark.parametrize("call", ["unscale_", "step", "update"])
def test_nothing_was_scaled(amp: SuiteAmp, amp_scaler: ScalerFactory, call: str) -> None:
    run = training(amp, amp_scaler())
    with pytest.raises(AssertionError, match=re.escape(f"Attempted {call} but _scale is None")):
        getattr(run.scaler, call)(*(() if call == "update" else (run.optimizer,)))


@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_ then step"])
def test_an_optimizer_without_gradients(amp: SuiteAmp, amp_scaler: ScalerFactory, *, explicit: bool) -> None:
    """An optimizer without gradients is an error, not a silent step (nerfstudio-project/nerfstudio#1919)."""
    run = training(amp, amp_scaler())
    run.scaler.scale(torch.ones((), device=amp.device.torch_device))
    if explicit:
        run.scaler.unscale_(run.optimizer)
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        run.scaler.step(run.optimizer)
    assert bool((run.parameter == 1).all())


def test_a_failed_call_leaves_the_gradients_alone(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward()
    run.scaler.unscale_(run.optimizer)
    before = run.gradient.clone()
    with contextlib.suppress(RuntimeError):
        run.scaler.unscale_(run.optimizer)
    assert torch.equal(run.gradient, before), "the refused second unscale_ divided the gradients again"


@pytest.mark.parametrize(
    "form",
    [
        "keyword",
        "positional",
    ],
)
def test_a_closure_is_refused(amp: SuiteAmp, amp_scaler: ScalerFactory, form: str) -> None:
    """Closures would run backward again after unscaling: the step would use scaled gradients."""
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward()
    arguments, keywords = ((), {"closure": lambda: 0.0}) if form == "keyword" else ((lambda: 0.0,), {})
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        run.scaler.step(run.optimizer, *arguments, **keywords)


def test_step_returns_what_the_optimizer_returns(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """``step`` forwards arguments and results. A skipped step returns None, as others may (pytorch/pytorch#152279)."""

    class Telling(torch.optim.SGD):
        def step(self, closure: None = None, *, reported: float = 0.0) -> float:  # type: ignore[override]
            super().step(closure)
            return reported

    run = training(amp, amp_scaler(init_scale=8.0))
    optimizer = Telling([run.parameter], lr=0.5)
    run.backward()
    assert run.scaler.step(optimizer, reported=2.5) == 2.5
    run.scaler.update()
    run.backward(float("nan"))
    assert run.scaler.step(optimizer, reported=2.5) is None


def test_a_skipped_step_is_told_by_the_scale(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """A lower scale after ``update`` is the only documented sign; a clean step never lowers it."""
    run = training(amp, amp_scaler(init_scale=8.0, growth_interval=1))
    for bad in (None, float("inf"), None):
        before = run.scaler.get_scale()
        after, _ = run.iterate(bad)
        assert (after < before) == (bad is not None)
