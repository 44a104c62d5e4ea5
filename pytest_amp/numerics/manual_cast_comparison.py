"""Compare a step in mixed precision with a step with manual casts on the same device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics import tolerance as limits
from pytest_amp.numerics.case_run import CaseRun, likely_cause, other_names
from pytest_amp.numerics.compare import Compared, confirmed, median_distance, same
from pytest_amp.numerics.draws import NotReplayed
from pytest_amp.numerics.order import different_bits, same_step
from pytest_amp.numerics.repeated import expect_repeatable
from pytest_amp.numerics.step import Step, run_step

__tracebackhide__ = is_usage_error


def check_reference(run: CaseRun, amp: Step, compared: Sequence[Compared]) -> None:
    """Check that a step is bitwise equal to one with manual casts, or close to it after nondeterministic reductions."""
    if run.tolerance is not None or not run.prediction.same_device:
        return
    different = frozenset(tensor.name for tensor in compared if not tensor.equal)
    bits, median = _different_bits(run, amp, different), median_allowed(run, compared)
    bad = [tensor for tensor in compared if tensor.name in bits]
    if not bad and median is not None and median_distance(compared) > median:
        bad = list(compared)
    elif not bad:
        bad = _too_far(run, compared)
    if bad:
        worst = max(bad, key=lambda tensor: tensor.distance)
        raise AmpFailure(
            f"{run.describe(worst.name)} differs from manual casts, as do {len(bad)} of {len(compared)} tensors",
            label_before="manual",
            before=f"error {worst.noise:.4g}",
            now=run.conditions.now(f"error {worst.error:.4g}, {worst.distance:.2g} times the noise from manual casts"),
            likely=likely_cause(run),
        )


def _too_far(run: CaseRun, compared: Sequence[Compared]) -> list[Compared]:
    """Return the tensors that are too far from manual casts', worst first, and not by chance.

    After reductions in any order the two steps are independent draws of the same errors.
    """
    limit = limits.WORST_DISTANCE
    bad = [tensor for tensor in compared if tensor.distance > limit * run.conditions.tolerance_scale]
    if not bad or run.prediction.predicted is None:
        return bad
    any_order = run.adds_in_any_order
    return confirmed(
        sorted(bad, key=_by_distance, reverse=True),
        run.case,
        run.conditions,
        run.step_of,
        limit=limits.FARTHEST if any_order else limit,
        measure=_by_distance,
        any_order=any_order,
    )


def _by_distance(tensor: Compared) -> float:
    return tensor.distance


def median_allowed(run: CaseRun, compared: Sequence[Compared]) -> float | None:
    """Return the largest allowed median distance from manual casts; None if an accelerator sums in another order."""
    on_cpu, prediction = run.conditions.device.kind is DeviceKind.CPU, run.prediction
    ordered = on_cpu or prediction.predicted is None or all(tensor.equal for tensor in compared)
    is_bitwise = run.tolerance is None and prediction.same_device and ordered
    return limits.MEDIAN_DISTANCE * run.conditions.tolerance_scale if is_bitwise else None


def check_unreplayed(run: CaseRun, amp: Step, reason: str) -> None:
    """Compare a step whose random numbers cannot be replayed with manual casts only, and warn with the reason.

    Both steps have the same dtypes, so their kernels draw the same random numbers from the same seed.
    """
    warnings.warn(
        NotReplayed(f"{run.case.name}: {reason}. Its values are compared with manual casts, and not with float64"),
        stacklevel=2,
    )
    reference = run.prediction.reference.named()
    different = frozenset(name for name, value in amp.named().items() if not same(value, reference[name]))
    bits = sorted(_different_bits(run, amp, different))
    if bits:
        raise AmpFailure(
            f"{run.describe(bits[0])} differs from manual casts{other_names(bits)}",
            label_before="manual",
            before="the same bits, with the same random numbers",
            now=run.conditions.now("different bits"),
            likely=f"an operator does not follow its rule; or {reason}",
        )


def _different_bits(run: CaseRun, amp: Step, different: frozenset[str]) -> frozenset[str]:
    """Return the tensors of ``different`` that still differ bitwise from manual casts' with deterministic reductions.

    On a CPU the step is run once more to decide. On an accelerator torch uses deterministic kernels, and warns about
    operators without one, but not about all: no bits are compared after an operator whose model adds in any order.
    """
    conditions, prediction = run.conditions, run.prediction
    if not different or (conditions.device.kind is not DeviceKind.CPU and prediction.predicted is None):
        return frozenset()
    if conditions.device.kind is DeviceKind.CPU:
        if same_step(run.step(), amp):
            return different
        expect_repeatable(run.case, run.realised, run.fp32, conditions)
        return frozenset()

    if run.adds_in_any_order:
        return frozenset()

    def manual_step() -> Step:
        realised = run.realised.on(conditions.device.torch_device)
        return run_step(run.case, realised, prediction.region, seed=conditions.seed, loss_scale=prediction.loss_scale)

    bits = different_bits(run.step, manual_step)
    if bits is None:
        expect_repeatable(run.case, run.realised, run.fp32, conditions)
    return bits or frozenset()
