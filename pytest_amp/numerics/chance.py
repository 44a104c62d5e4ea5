"""Separate faults from chance in one step: accept a tensor, have it drawn again, or report an improvement.

A ReLU at zero, a maximum or a flipped rounding may change whole gradients, in the step or in its prediction. This is
not a fault, so exceeding a bound in a single draw is not a failure by itself:

- A tensor that is equal to that of manual casts is accepted if all operators of the step follow their rounding models.
  It was computed correctly, even if the prediction, which sums in another order, differs. If an operator has no model,
  it was not checked, and the tensor is not accepted. *Equal* means bitwise equal, or different by at most
  ``tolerance.SAME`` times the noise: kernels with atomics, such as cuDNN's backward convolutions, do not repeat their
  bits.
- Any other tensor fails only if it exceeds the bound in the median of three draws, or in the root mean square of more
  draws if a reduction is nondeterministic (``compare.confirmed``).
- A tensor whose error is smaller than rounding allows fails only if an operator received different dtypes than with
  manual casts. Otherwise the improvement of a kernel is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics import tolerance
from pytest_amp.numerics.case_run import CaseRun, other_names
from pytest_amp.numerics.compare import Compared, confirmed
from pytest_amp.numerics.oracle.observer import ObservedCall
from pytest_amp.numerics.oracle.operation import LOW, is_real
from pytest_amp.numerics.step import Region, run_step
from pytest_amp.precision import dtype_name
from pytest_amp.record import Observe

__tracebackhide__ = is_usage_error


def not_acquitted(run: CaseRun, bad: Sequence[Compared]) -> list[Compared]:
    """Return the tensors of ``bad`` that differ from those of manual casts; all if a call was not checked."""
    if not any(_equals_manual_casts(tensor) for tensor in bad) or not run.prediction.same_device:
        return list(bad)
    unjudged = any(call.problem is not None or _is_complex(call) for call in run.operators)
    if run.faults or unjudged or _has_sparse(run):
        return list(bad)
    return [tensor for tensor in bad if not _equals_manual_casts(tensor)]


def _equals_manual_casts(tensor: Compared) -> bool:
    return tensor.equal or tensor.distance <= tolerance.SAME


def _is_complex(call: ObservedCall) -> bool:
    """Return whether a call has complex results, which have no rounding model."""
    return any(result.dtype.is_complex for result in call.results)


def _has_sparse(run: CaseRun) -> bool:
    """Return whether a call of the step has a tensor that is not strided. Such tensors have no rounding model."""
    layouts: set[torch.layout] = set()

    def note(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = torch_private.call_overload(overload, args, kwargs)
        leaves = torch_private.flat((args, kwargs, result))[0]
        layouts.update(leaf.layout for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result

    realised, conditions = run.realised.on(run.conditions.device.torch_device), run.conditions
    with torch_private.each_call(note):
        run_step(run.case, realised, conditions.region, seed=conditions.seed, replay=False)
    return bool(layouts - {torch.strided})


def check_distance(run: CaseRun, compared: Sequence[Compared]) -> None:
    """Check that each tensor is within ``tolerance.FARTHEST`` of its prediction, in units of the noise."""
    if run.prediction.unmodelled:
        return
    limit = tolerance.FARTHEST
    bad = [tensor for tensor in compared if tensor.from_model > limit * run.conditions.tolerance_scale]
    bad = not_acquitted(run, sorted(bad, key=lambda tensor: -tensor.from_model)) if bad else bad
    if bad:
        step = run.step_of
        any_order = run.adds_in_any_order
        bad = confirmed(
            bad,
            run.case,
            run.conditions,
            step,
            limit=limit,
            measure=lambda tensor: tensor.from_model,
            any_order=any_order,
        )
    if not bad:
        return
    worst, name = bad[0], f"{run.case.name}: {bad[0].name}"
    raise AmpFailure(
        f"{name} under {run.conditions} is {worst.from_model:.3g} times the noise from its prediction",
        label_before="predicted",
        before=f"at most {limit:.2f}, in {'more draws together' if any_order else 'the median of three draws'}: two "
        "independent errors are 1.41 apart",
        now=run.conditions.now(f"error {worst.error:.3g}; error of the prediction {worst.noise:.3g}"),
        likely="an operator does not follow its rule or its rounding model: amp.trace(case) lists every operator",
    )


def check_dtypes_given(run: CaseRun, compared: Sequence[Compared], observe: Observe) -> None:
    """Check that operators receive the dtypes of manual casts if a tensor's error is smaller than rounding allows.

    With equal dtypes a kernel has improved, or the error is small by chance. The improved operators are recorded as
    ``<case>/summary.improved``.
    """
    least, most = run.conditions.precision.u / 8, tolerance.LEAST / max(run.conditions.tolerance_scale, 1.0)
    large = [tensor for tensor in compared if tensor.noise > least and tensor.elements >= tolerance.ENOUGH]
    exact = [tensor for tensor in large if tensor.error < most * tensor.noise]
    if not exact:
        return
    different = _other_dtypes(run)
    if different is None:
        improved = _improved(run)
        if improved:
            observe(f"{run.case.name}/summary.improved", ", ".join(improved), kind="state")
        return
    operator, actual, expected = different
    worst = min(exact, key=lambda tensor: tensor.error / tensor.noise)
    raise AmpFailure(
        f"{run.case.name}: {operator} is given {actual} under {run.conditions}; {worst.name} has an error of "
        f"only {worst.error:.3g}"
        f"{other_names([tensor.name for tensor in exact])}",
        label_before="manual",
        before=f"manual casts give it {expected}; the noise of the predicted rounding is {worst.noise:.3g}",
        now=run.conditions.now(actual),
        likely="autocast was off, or the operator has lost its rule",
    )


def _other_dtypes(run: CaseRun) -> tuple[str, str, str] | None:
    """Return the first operator whose argument dtypes differ from those of manual casts: its name, and both dtypes."""
    actual, known = _count_calls(run, run.conditions.region), _count_calls(run, run.prediction.region)
    for operator, dtypes in sorted(actual - known):
        expected = next((other for name, other in sorted(known - actual) if name == operator), None)
        if expected is not None:
            return operator.removeprefix("aten::"), dtypes, expected
    return None


def _count_calls(run: CaseRun, region: Region) -> Counter[tuple[str, str]]:
    """Count the calls of each operator by dtypes in a step inside ``region``, except casts and views."""
    counted: Counter[tuple[str, str]] = Counter()

    def note(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = overload.name()
        if name not in _CASTS and not torch_private.aliasing_of(overload).views:
            leaves = torch_private.flat((args, kwargs))[0]
            dtypes = dict.fromkeys(dtype_name(leaf.dtype) for leaf in leaves if is_real(leaf))
            counted[name, " and ".join(dtypes)] += 1
        return torch_private.call_overload(overload, args, kwargs)

    realised, conditions = run.realised.on(run.conditions.device.torch_device), run.conditions
    with torch_private.each_call(note):
        run_step(run.case, realised, region, seed=conditions.seed, loss_scale=run.prediction.loss_scale, replay=False)
    return counted


_CASTS = frozenset({"aten::_to_copy", "aten::copy_"})


def _improved(run: CaseRun) -> list[str]:
    """Return the operators with a low-precision or float32 result that is more exact than their rounding models."""
    names = {
        call.operator
        for call in run.operators
        for result in call.results
        if result.dtype in (*LOW, torch.float32)
        and result.elements >= tolerance.ENOUGH
        and result.error < tolerance.LEAST * result.ideal
    }
    return sorted(names)
