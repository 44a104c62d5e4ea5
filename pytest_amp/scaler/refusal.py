"""Refusals of GradScaler, or of the optimizer that it calls: the failure, with the line of the call and its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_amp.failure import AmpFailure

if TYPE_CHECKING:
    from pytest_amp.scaler.iteration import Iteration


def refused(
    where: str, error: Exception, iteration: Iteration | None = None, *, by_optimizer: bool = False
) -> AmpFailure:
    """Return the failure of a training step that GradScaler, or its optimizer, refuses, with the error's text."""
    now = f"{type(error).__name__}: {error}"
    if iteration is not None and not by_optimizer:
        unscaled = _without_scale(where, iteration, now)
        if unscaled is not None:
            return unscaled
    return AmpFailure(
        f"{where}: {'the optimizer' if by_optimizer else 'GradScaler'} refuses the training step",
        now=now,
        site=None if iteration is None else iteration.scaler.last_line,
        likely=likely_of_refusal(error, iteration, by_optimizer=by_optimizer),
    )


def _without_scale(where: str, iteration: Iteration, now: str) -> AmpFailure | None:
    """Return the failure of a step that unscales gradients of a loss that was not scaled."""
    if iteration.scaler.scaled or not iteration.backwards:
        return None
    return AmpFailure(
        f"{where}: the loss is not scaled, and GradScaler refuses to unscale its gradients",
        label_before="rule",
        before="scaler.scale(loss).backward(): gradients are divided by the scale that the loss was multiplied with",
        now=now,
        site=", ".join(iteration.backward_lines) or None,
        likely="loss.backward() in place of scaler.scale(loss).backward()",
    )


#: Causes by a part of the text of GradScaler's error.
_CAUSES = {
    "unscale_() has already been called": "scaler.update() is missing at the end of the iteration before, or unscale_ "
    "is called twice",
    "step() has already been called": "scaler.update() is missing at the end of the iteration before, or scaler.step "
    "is called twice",
    "prior to update": "no scaler.step since the last scaler.update(): update belongs behind the step, and under the "
    "same condition where several micro-batches share a step",
    "after step()": "scaler.unscale_(optimizer) belongs before scaler.step(optimizer), whose gradients it divides",
    "Closure use": "scaler.step takes no closure: compute the loss and call backward before it. An optimizer that "
    "needs a closure, such as LBFGS, cannot skip a step, and is to be trained without a scaler",
    "_scale is None": "scaler.scale(loss) was never called: it is what creates the scale",
}
_UNKNOWN = "a call is missing, doubled or in the wrong place: scale, unscale_, step, update"


def likely_of_refusal(error: Exception, iteration: Iteration | None = None, *, by_optimizer: bool) -> str:
    """Return why the scaler, or the optimizer, refuses, judged by the text of its error."""
    words = str(error)
    if "FP16 gradients" in words:  # unscale_ in torch/amp/grad_scaler.py
        return "parameters that are float16: keep them in float32, which autocast casts"
    if by_optimizer:
        return "it does not take such parameters or gradients: optimizer= makes another"
    if "unscale_() has already been called" in words:
        times = 0 if iteration is None else iteration.scaler.called.count("unscale_")
        if times > 1:
            return f"scaler.unscale_ is called {times} times in an iteration: once, after the last micro-batch"
    if "_scale is None" in words and iteration is not None and iteration.scaler.has_closure:
        return _CAUSES["Closure use"]
    if "No inf checks were recorded" in words and "prior to update" not in words:
        return _of_no_gradient(iteration)
    return next((cause for part, cause in _CAUSES.items() if part in words), _UNKNOWN)


def _of_no_gradient(iteration: Iteration | None) -> str:
    """Return why no parameter of the optimizer has a gradient: no backward pass, or none that remains or reaches it."""
    what = "no parameter of the optimizer has a gradient"
    if iteration is not None and not iteration.backwards:
        return f"{what}: backward was not called before scaler.step"
    return (
        f"{what}: zero_grad() was called between backward and scaler.step, the loss was detached, or the optimizer has "
        "other parameters than the model that computed it"
    )
