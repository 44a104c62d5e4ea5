"""Calls of the scaler and the optimizer in a training step: missing, doubled, or bypassing the scaler."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.callers import definition_of
from pytest_amp.scaler.iteration import Iteration, Train, standard_step

__tracebackhide__ = is_usage_error


def check_calls(case: str, train: Train, iteration: Iteration) -> None:
    """Raise AmpFailure unless ``scaler.step`` and ``scaler.update`` are called once each, without other steps."""
    where = f"{case}, iteration {iteration.index}"
    scaler, called = iteration.scaler, iteration.scaler.called
    if iteration.scaler_lines and "step" not in called:
        raise AmpFailure(
            f"{where}: the training step makes a GradScaler of its own",
            label_before="rule",
            before="one scaler for the whole training, iteration.scaler: its scale falls and grows from step to step",
            now=f"{len(iteration.scaler_lines)} made in this iteration; iteration.scaler steps {called.count('step')} "
            "times",
            site=_lines(iteration.scaler_lines),
            likely="a scaler made in each step begins at 65536 again, and one with enabled=False scales nothing",
        )
    if iteration.stepped_alone and not scaler.scaled and not called:
        raise AmpFailure(
            f"{where}: the training step has no scaler: the optimizer steps with gradients that were never scaled",
            label_before="rule",
            before="in float16 scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update(): gradients below "
            "6e-8 are zero without it",
            now="loss.backward() and optimizer.step()",
            site=_lines([*iteration.backward_lines, *iteration.step_lines]),
            likely="it was written for bfloat16, which needs no scaler",
        )
    if iteration.stepped_alone:
        raise AmpFailure(
            f"{where}: the training step calls the optimizer's own step, past the scaler",
            label_before="rule",
            before="scaler.step(optimizer), which unscales the gradients and skips what is not finite",
            now=_called(called),
            site=_lines(iteration.step_lines),
            likely="optimizer.step() in place of scaler.step(optimizer): "
            + ("" if "unscale_" in called else "its gradients are still scaled, and ")
            + "a step with an inf or NaN is taken",
        )
    _check_count(where, train, iteration, "step", "scaler.step(optimizer) belongs once into each iteration; of several "
                 "optimizers, check each by itself")  # fmt: skip
    _check_count(where, train, iteration, "update", "without scaler.update() the scale never changes, and each "
                 "overflow is met again")  # fmt: skip


def _check_count(where: str, train: Train, iteration: Iteration, method: str, likely: str) -> None:
    """Raise AmpFailure unless a method of the scaler is called once."""
    called = iteration.scaler.called
    count = called.count(method)
    # A training step may itself check the norm of the unscaled gradients, and skip scaler.step if it is infinite.
    is_left_out = method == "step" and count == 0 and iteration.scaler.found_inf and "unscale_" in called
    if count == 1 or is_left_out:
        return
    lines = iteration.scaler.lines.get(method) or iteration.scaler.lines.get("step")
    raise AmpFailure(
        f"{where}: the training step calls scaler.{method} {count} times",
        label_before="rule",
        before="scale, unscale_ (if gradients are read), step, update, once each",
        now=_called(called),
        site=_lines(lines or [first_line_of(train) or ""]),
        likely=likely,
    )


def check_stale(case: str, train: Train, iteration: Iteration) -> None:
    """Raise AmpFailure if an iteration begins with gradients of the previous one, or steps twice with the same ones."""
    names = sorted(iteration.stale or iteration.stale_within)
    if not names:
        return
    source = "the iteration before" if iteration.stale else "a step in the same iteration"
    if iteration.stale:
        rule = "an iteration begins without gradients: the old ones are without the scale, the new ones with it"
    else:
        rule = "accumulation steps once, behind the last backward pass; a further step begins without gradients"
    raise AmpFailure(
        f"{case}, iteration {iteration.index}: gradients are added to those of {source}",
        label_before="rule",
        before=rule,
        now=", ".join(names[:3]) + (", ..." if len(names) > 3 else ""),
        site=_lines([first_line_of(train) or "", *iteration.backward_lines, *iteration.scaler.lines.get("step", [])]),
        likely="optimizer.zero_grad() is missing, or does not have these parameters"
        if iteration.stale
        else "scaler.step is called for each part of an accumulated gradient, or optimizer.zero_grad() is missing",
    )


def first_line_of(train: Train) -> str | None:
    """Return the line in which a user's training step begins; None for the standard one."""
    return None if train is standard_step else definition_of(train) or None


def _lines(lines: Sequence[str]) -> str | None:
    """Return lines as a failure names them, without duplicates."""
    return ", ".join(dict.fromkeys(line for line in lines if line)) or None


def _called(called: Sequence[str]) -> str:
    return ", ".join(called) or "no call"
