"""Check for parts of the gradients that are not scaled, or that are changed before they are unscaled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_amp.account import receive
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.numerics.callers import calling_line
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.trace import Training
from pytest_amp.scaler.watched import parameters_of
from pytest_amp.text.amounts import counted
from pytest_amp.torch_private import Dispatched, current_node, dispatched_calls

__tracebackhide__ = is_usage_error

#: Loss scale of the second run, too small for an overflow in float32.
SCALE = 2.0**10
#: Relative distance of the gradients of both runs from which they depend on the scale: a thousand times the rounding of
#: float32.
DISTANCE = 1e-3


def check_parts(training: Training) -> None:
    """Compare the gradients that the optimizer receives with loss scaling and without, both in float32.

    Without mixed precision only the training step can cause a difference: a loss that is not scaled, or gradients that
    are clipped before they are unscaled. The check is skipped if the step does not run in float32, or opens a region
    itself. Raises AmpFailure.
    """
    float32_training = replace(training, low=False, overflow_gradients_at=(), overflow_activations_at=())
    plain, scaled = _first(float32_training, 1.0), _first(float32_training, SCALE)
    if plain is None or scaled is None or plain.regions or scaled.regions:
        return
    distance = _largest_distance(plain, scaled)
    if distance <= DISTANCE:
        return
    again = _first(float32_training, 1.0)
    if again is None or not _largest_distance(plain, again) <= DISTANCE:
        return  # it also differs at one scale: random numbers that torch does not seed
    lines = scaled.unscaled_lines
    if lines:
        raise _failure(
            training,
            distance,
            what="a part of the gradients is not scaled",
            now=f"the loss of {len(lines)} of {counted(len(scaled.backwards), 'backward call')} is not scaled",
            site=", ".join(lines),
            likely="loss.backward() in place of scaler.scale(loss).backward(): its gradients are divided by the scale, "
            "and so lost",
        )
    shared = _shared(scaled)
    if shared:
        raise _failure(
            training,
            distance,
            what="the gradients that an optimizer sees depend on the scale",
            now=f"{counted(len(shared), 'parameter')} {'belong' if len(shared) > 1 else 'belongs'} to two optimizers: "
            f"{', '.join(shared[:3])}",
            site=", ".join(dict.fromkeys(scaled.scaler.lines.get("step", []))) or None,
            likely="each of the two optimizers divides the same gradients by the scale: give each its own parameters",
        )
    if scaled.bypassing_lines:
        raise _failure(
            training,
            distance,
            what="an optimizer steps past the scaler, and its gradients depend on the scale",
            now=f"{counted(len(scaled.bypassing_lines), 'optimizer step')} without the scaler",
            site=", ".join(dict.fromkeys(scaled.bypassing_lines)),
            likely="optimizer.step() in place of scaler.step(optimizer): its gradients are still scaled",
        )
    what = "the gradients that the optimizer sees depend on the scale"
    late = _late_backwards(scaled)
    if late and len({id(step.optimizer) for step in scaled.scaler.steps}) == 1:  # another one may follow an unscale_
        raise _failure(
            training,
            distance,
            what=what,
            now="backward is called after scaler.unscale_(optimizer), and before scaler.step",
            site=", ".join(late),
            likely="scaled gradients are added to those that unscale_ has divided: unscale_ belongs behind the last "
            "backward pass of the step",
        )
    read = lines_that_read_gradients(training)
    scales = list(dict.fromkeys(scaled.scaler.lines.get("get_scale", [])))
    if scales and (not read or set(read) & set(scales)):
        raise _failure(
            training,
            distance,
            what=what,
            now=f"the step reads scaler.get_scale() itself: relative distance {distance:.3g}",
            site=", ".join(scales),
            likely="the loss or its gradients are divided by the scale there, and again by scaler.step or "
            "scaler.unscale_",
        )
    raise _failure(
        training,
        distance,
        what=what,
        now=f"read or changed before scaler.unscale_(optimizer): relative distance {distance:.3g}",
        site=", ".join(read) or None,
        likely="gradients are clipped, or read, before scaler.unscale_(optimizer)",
    )


def _failure(  # noqa: PLR0913  # the parts of one failure
    training: Training, distance: float, *, what: str, now: str, site: str | None, likely: str
) -> AmpFailure:
    return AmpFailure(
        f"{training.case.name}: {what}",
        label_before="rule",
        before=f"in float32 the same with a scale of {SCALE:.0f} as without one; they differ by {distance:.3g} of "
        "their size",
        now=now,
        site=site,
        likely=likely,
    )


def _late_backwards(iteration: Iteration) -> list[str]:
    """Return the lines of backward passes after an ``unscale_`` whose step has not been taken yet."""
    lines: dict[str, None] = {}
    for backward in iteration.backwards:
        before = iteration.scaler.called[: backward.calls]
        if backward.line and before and before[-1] == "unscale_":
            lines.setdefault(backward.line)
    return list(lines)


def _shared(iteration: Iteration) -> list[str]:
    """Return the names of the parameters that two of the stepped optimizers have."""
    counts = Counter(
        parameter
        for optimizer in {id(step.optimizer): step.optimizer for step in iteration.scaler.steps}.values()
        for parameter in set(parameters_of(optimizer))
    )
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in iteration.model.named_parameters()}
    return sorted(names.get(parameter, "a parameter") for parameter, count in counts.items() if count > 1)


def _first(training: Training, scale: float) -> Iteration | None:
    """Return the first iteration at ``scale``, None if it does not run."""
    try:
        (result,) = training.iterations(1, scale, UpdateRule())
    except AmpFailure as failure:
        receive(failure)
    except AmpUsageError:
        raise
    except Exception:  # noqa: BLE001  # a model that runs within a region only
        return None
    else:
        return result[0] if result[0].gradients_by_step else None
    return None


def _largest_distance(left: Iteration, right: Iteration) -> float:
    """Return the largest distance of a step: gradients of one optimizer may be small beside those of another."""
    if len(left.gradients_by_step) != len(right.gradients_by_step):
        return math.inf
    pairs = zip(left.gradients_by_step, right.gradients_by_step, strict=True)
    return max((distance_of(*pair) for pair in pairs), default=0.0)


def distance_of(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """Return the distance of two lists of gradients relative to the first's size; infinite if lengths differ."""
    if len(left) != len(right):
        return math.inf
    size = math.hypot(*(float(tensor.norm()) for tensor in left))
    difference = math.hypot(*(float((a - b).norm()) for a, b in zip(left, right, strict=True)))
    return difference / size if size else 0.0


def lines_that_read_gradients(training: Training) -> list[str]:
    """Return the lines that read gradients after a backward pass and before the scaler's next call."""
    float32_training = replace(training, low=False, overflow_gradients_at=(), overflow_activations_at=())
    lines: dict[str, None] = {}
    running: list[Iteration] = []

    def read(line: str | None, *, is_graph: bool) -> None:
        if not running:
            return
        iteration = running[-1]
        calls = iteration.backwards[-1].calls if iteration.backwards else 0
        later = iteration.scaler.called[calls:]
        is_early = (is_graph or iteration.backwards) and not {"unscale_", "step"} & {*later}
        if line is not None and is_early:
            lines.setdefault(line)

    with suppress(Exception), _reads_of_gradients(read):
        list(float32_training.iterations(1, SCALE, UpdateRule(), running.append))
    return list(lines)


@contextmanager
def _reads_of_gradients(note: Callable[..., object]) -> Iterator[None]:
    """Call ``note`` inside the block with the line of each reading of gradients.

    A line reads ``grad``, calls ``torch.autograd.grad``, or belongs to a hook of a parameter.
    """
    gradient: Any = torch.Tensor.grad
    read = gradient.__get__

    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (read, torch.autograd.grad):
                note(calling_line(), is_graph=func is torch.autograd.grad)
            return func(*args, **(kwargs or {}))

    def run(call: Dispatched) -> Any:
        if hasattr(current_node(), "variable"):  # the node that accumulates the gradient of a parameter
            note(calling_line(backward=True), is_graph=False)
        return call()

    with Noting(), dispatched_calls(run):
        yield
