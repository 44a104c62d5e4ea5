"""Find the operator at which the rounding noise of a step arises, and compare with the conditioning in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_amp.account import receive
from pytest_amp.cases import Case, Realised
from pytest_amp.numerics import oracle
from pytest_amp.numerics.case_run import CaseRun
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import norm
from pytest_amp.numerics.noise_shares import Noisy, noisy_calls
from pytest_amp.numerics.nonfinite import origin_in_step
from pytest_amp.numerics.oracle.module_places import Direction
from pytest_amp.numerics.prediction import Prediction
from pytest_amp.numerics.sites import in_words
from pytest_amp.numerics.step import Region, Step
from pytest_amp.precision import FP32

#: Fraction of the largest jump from which on other jumps are reported, too.
_ALSO = 0.4
#: Fraction of the largest jump from which on a call counts among those of its operator.
_COUNTS = 0.1
#: Float32 is ill-conditioned, too, if its error in units of its roundoff is at least this fraction of the low dtype's.
_SAME_TROUBLE = 1 / 16


@dataclass(frozen=True)
class Jump:
    """Call whose result has more noise than its arguments: ``before`` and ``after`` are relative L2 errors.

    ``module`` is a path with the module's type; ``shape`` is the shape of the call's first argument. ``flushed`` is the
    fraction of the result's values that underflowed to zero. Of the squared error of all gradients or outputs,
    ``share`` arises at the call, and ``together`` at all calls of its operator in either pass.
    """

    operator: str
    module: str
    direction: Direction
    line: str | None
    before: float
    after: float
    shape: tuple[int, ...]
    flushed: float
    share: float
    together: float

    @property
    def advice(self) -> str:
        """Recommended change of the model."""
        return _advice(self)

    def __str__(self) -> str:
        """Return a description of the jump."""
        line = "" if self.line is None else f", at {self.line}"
        return (
            f"{self.operator} in {self.module}, {self.direction.value} pass{line}: "
            f"from {_percent(self.before)} to {_percent(self.after)}"
        )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _ONE_PER_CENT else f"{100 * share:.2g}%"


_ONE_PER_CENT = 0.01


def names_of_group(prediction: Prediction, group: str) -> list[str]:
    """Return the names of all tensors of the group ``outputs`` or ``gradients`` that have a prediction."""
    if group == "outputs":
        return [name for name in prediction.noise if name.startswith("output.")]
    return [name for name in prediction.noise if not name.startswith(("output.", "buffer."))]


def lost_share(step: Step, exact: Step, names: Sequence[str]) -> float:
    """Return E(step, exact) of several tensors taken together."""
    known, actual = exact.named(), step.named()
    whole = math.hypot(*(norm(known[name]) for name in names))
    lost = math.hypot(*(norm(actual[name].to(known[name].device).double() - known[name]) for name in names))
    return lost / whole if whole else 0.0


def why_lost(run: CaseRun, group: str, share: float) -> tuple[str, str]:
    """Describe where a step's noise jumps, and why, for a failure whose ``group`` of tensors is lost to rounding."""
    origin = origin_in_step(
        run.case,
        run.realised,
        run.conditions.device.torch_device,
        run.conditions.region,
        seed=run.conditions.seed,
        loss_scale=run.prediction.loss_scale,
        hidden=True,
    )
    if origin is not None and origin.direction is Direction.FORWARD:
        return origin.now, f"{origin.cause}, and later operators make it finite; take {origin.advice}"
    jumps = []
    if run.prediction.predicted is not None:
        jumps = jumps_of(
            run.case,
            run.realised,
            run.conditions,
            run.prediction.region,
            loss_scale=run.prediction.loss_scale,
            forward_only=group == "outputs",
        )
    trouble = _trouble(run, group, share)
    if not jumps:
        return "no tolerance can be derived from it", trouble
    first = jumps[0]
    more = list(dict.fromkeys(jump.module for jump in jumps[1:] if jump.module != first.module))
    also = f"; less so at {', '.join(more[:3])}" if more else ""
    parts = f"{first.share:.0%} of the squared error arises there"
    if first.together > first.share:
        parts = f"{parts}, {first.together:.0%} in all calls of that operator"
    return f"the noise jumps at {first} ({parts}){also}", f"{trouble}. {first.advice}"


def _trouble(run: CaseRun, group: str, share: float) -> str:
    """Describe whether float32's error is as large, in units of its own roundoff."""
    wide = lost_share(run.fp32, run.prediction.exact, names_of_group(run.prediction, group))
    low, ratio = share / run.conditions.precision.u, wide / FP32.u
    numbers = (
        f"{low:.0f} roundings of {run.conditions.precision.name} ({share:.0%}), {ratio:.0f} of float32 ({wide:.1e})"
    )
    if ratio >= low * _SAME_TROUBLE:
        return f"ill conditioning, also in float32, in units of its own roundoff: {numbers}"
    return f"the low dtype itself, since float32 has no such trouble: {numbers}"


#: Fraction of values flushed to zero above which underflow is reported as the cause.
_MOSTLY = 0.5
#: Number of values of a channel that a larger batch would hardly help.
_ENOUGH = 64
#: Normalizations over a batch, whose conditioning depends on the number of values per channel.
_BATCH = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm_backward",
)
#: Operators whose derivative has jumps, by which rounding of the input changes it as a whole.
_KINKED = (
    *("threshold", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "leaky_relu", "rrelu"),
    *("_prelu_kernel", "max_pool", "adaptive_max_pool", "fractional_max_pool"),
)
_NORMS = ("native_layer_norm", "native_group_norm", "_fused_rms_norm")
_TURNS = ("sin", "cos", "tan", "remainder", "fmod", "frac", "floor", "round", "trunc", "ceil")
_CANCELS = ("add", "sub", "rsub", "sum", "mean", "var", "std", "cumsum", "logsumexp")


def _advice(jump: Jump) -> str:
    name = jump.operator.removesuffix("_backward")
    if jump.flushed > _MOSTLY:
        return f"{jump.flushed:.0%} of what it returns underflows to 0: scale the loss, or compute that in float32"
    if name.startswith(_BATCH) and len(jump.shape) > 1:
        count = math.prod(jump.shape) // jump.shape[1]
        if count >= _ENOUGH:
            return (
                f"BatchNorm divides by the spread of {count} values of each channel there, which differ little: check "
                "with that layer in eval(), or GroupNorm in place of it"
            )
        return (
            f"BatchNorm has {count} values of each channel there: check with a larger batch or larger inputs, or with "
            "that layer in eval(), or GroupNorm in place of it"
        )
    if name.startswith(_KINKED) and jump.direction is Direction.BACKWARD:
        return _OF_KINKS
    if name in _TURNS:
        return "Its argument is rounded by as much as its period: compute it, and what makes it, in float32"
    return next((advice for names, advice in _ADVICE if name.startswith(names)), _IN_FLOAT32)


_OF_KINKS = (
    "Its derivative has a jump, and rounding moves inputs across it: check with the BatchNorm layers before it, if "
    "any, in eval(), or with a smooth activation (SiLU, GELU)"
)
_IN_FLOAT32 = "Compute it, and what makes its input, in float32: x.float(), or autocast(enabled=False) around it"
_ADVICE = (
    (
        ("sgn", "sign"),
        "Rounding decides the sign of its argument (of an L1 loss whose outputs equal targets): check with others",
    ),
    (_NORMS, "The rows that it normalizes are nearly constant: check with other inputs or weights, or bound its input"),
    (
        _CANCELS,
        "Terms cancel in it: compute it, and its terms, in float32 (x.float()), or subtract before squaring or summing",
    ),
)


def jumps_of(  # noqa: PLR0913  # keywords of one run
    case: Case, realised: Realised, conditions: Conditions, region: Region, *, loss_scale: float, forward_only: bool
) -> list[Jump]:
    """Return the calls at which the noise of the gradients, or with ``forward_only`` of the outputs, arises.

    The first is the one with the largest share among those of the operator with the largest share in all. Calls with
    similar shares follow.
    """
    try:
        ranked, names = noisy_calls(case, realised, conditions, region, loss_scale=loss_scale, of_outputs=forward_only)
    except oracle.CannotFollow as failure:
        receive(failure)
        return []
    ranked = [noisy for noisy in ranked if noisy.share >= _COUNTS * ranked[0].share]
    together: dict[str, float] = {}
    for noisy in ranked:
        together[_family(noisy)] = together.get(_family(noisy), 0.0) + noisy.share
    ranked.sort(key=lambda noisy: (-together[_family(noisy)], -noisy.share))
    return [
        Jump(
            operator=noisy.call.operator,
            module=in_words(noisy.call.site.module, names),
            direction=noisy.call.site.direction,
            line=noisy.call.site.line,
            before=noisy.before,
            after=noisy.after,
            shape=noisy.call.shape,
            flushed=noisy.flushed,
            share=noisy.share,
            together=together[_family(noisy)],
        )
        for noisy in ranked
        if noisy.share >= _ALSO * ranked[0].share
    ]


def _family(noisy: Noisy) -> str:
    """Return the name of an operator without that of its pass."""
    return noisy.call.operator.removesuffix("_backward")
