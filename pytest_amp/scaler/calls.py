"""Calls of the scaler and the optimizer in a training step: missing, doubled, or bypassing the scaler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.callers import definition_of
from pytest_amp.scaler.iteration import Iteration, Train, standard_step
from pytest_amp.text.amounts import counted

__tracebackhide__ = is_usage_error


def check_calls(case: str, train: Train, iteration: Iteration) -> None:
    """Raise AmpFailure unless ``scaler.update`` is called once after ``scaler.step``, without other steps.

    Several optimizers may step before an update, and a training step may take several steps, each with its update.
    """
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
    lines, steps, updates = scaler.lines, called.count("step"), called.count("update")
    # A training step may itself check the norm of the unscaled gradients, and skip scaler.step if it is infinite.
    is_left_out = scaler.found_inf and "unscale_" in called
    if not steps and not is_left_out:
        likely = "scaler.step(optimizer) unscales the gradients, and steps unless they have an inf or NaN"
        raise _wrong_calls(f"{where}: the training step calls scaler.step 0 times", train, iteration, [], likely)
    is_repeated = any(call == before == "update" for before, call in pairwise(called))
    if not updates or is_repeated:
        likely = "without scaler.update() the scale never changes, and each overflow is met again"
        if updates:
            likely = "scaler.update() belongs once behind the steps of all optimizers"
        what = f"{where}: the training step calls scaler.update {counted(updates, 'time')}"
        raise _wrong_calls(what, train, iteration, lines.get("update") or lines.get("step", []), likely)
    if called[-1] != "update":
        method = "step" if "step" in called[len(called) - called[::-1].index("update") :] else "unscale_"
        what = f"{where}: the training step calls scaler.{method} after its last scaler.update"
        likely = "scaler.update() belongs once behind the steps of all optimizers"
        raise _wrong_calls(what, train, iteration, lines.get(method, [])[-1:], likely)
    _check_scaled_before_update(where, iteration)


def _wrong_calls(what: str, train: Train, iteration: Iteration, lines: list[str], likely: str) -> AmpFailure:
    return AmpFailure(
        what,
        label_before="rule",
        before="scale, unscale_ (if gradients are read), step of each optimizer, then update, once",
        now=_called(iteration.scaler.called),
        site=_lines(lines or [first_line_of(train) or ""]),
        likely=likely,
    )


def _check_scaled_before_update(where: str, iteration: Iteration) -> None:
    """Raise AmpFailure if an optimizer steps with gradients that began before an update."""
    early, scaler = iteration.scaled_before_update, iteration.scaler
    if not early:
        return
    raise AmpFailure(
        f"{where}: scaler.update comes between the backward pass and the step of {counted(len(early), 'parameter')}",
        label_before="rule",
        before="scaler.update() is called once, after all optimizers of the iteration have stepped: it changes the "
        "scale by which the gradients will be divided",
        now=f"{_called(scaler.called)}; {', '.join(sorted(early)[:3])}{', ...' if len(early) > 3 else ''}",
        site=_lines(scaler.lines.get("update", [])[min(early.values()) :][:1]),
        likely="one scaler.update() for each optimizer, in place of one behind all steps",
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
