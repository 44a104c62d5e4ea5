"""Find the operator at which the rounding noise of a step jumps, and compare with the conditioning in float32.

The step runs twice on virtual tensors, with and without rounding, and the results of each operator are compared. Both
runs make the same calls in the same order, since they have the same dtypes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.account import receive
from pytest_amp.cases import Case, Realised
from pytest_amp.numerics import oracle
from pytest_amp.numerics.case_run import CaseRun
from pytest_amp.numerics.causes import operator_of
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import norm
from pytest_amp.numerics.nonfinite import origin_in_step
from pytest_amp.numerics.oracle.module_places import Direction
from pytest_amp.numerics.oracle.operation import is_real
from pytest_amp.numerics.oracle.virtual import values
from pytest_amp.numerics.sites import Site, Sites, in_words
from pytest_amp.numerics.step import Region, Step
from pytest_amp.precision import FP32

#: Number of compared elements of a tensor: at most ``_SAMPLED``, or ``_FEW`` after ``_BUDGET`` elements of a run.
_SAMPLED, _FEW, _BUDGET = 2**16, 2**8, 2**26
#: Operators that copy a tensor's values unchanged, depending on its strides, which a rounded result may not share.
_COPIES = frozenset({"aten::clone", "aten::_unsafe_view"})
#: Relative error above which an exact tensor consists of float64 cancellation errors only, and is ignored.
_VANISHES = 2.0**20
#: Fraction of the largest jump from which on other jumps are reported, too.
_ALSO = 0.4
#: Float32 is ill-conditioned, too, if its error in units of its roundoff is at least this fraction of the low dtype's.
_SAME_TROUBLE = 1 / 16


@dataclass
class _Call:
    """Call of a virtual run: samples of its floating-point arguments and of its first result, and its later use."""

    operator: str
    site: Site
    arguments: list[torch.Tensor]
    result: torch.Tensor | None
    shape: tuple[int, ...]
    used: bool = False


@dataclass(frozen=True)
class _Sampled(oracle.Predictor):
    """Predictor that records samples of the arguments and results of each call."""

    calls: list[_Call] = field(default_factory=list)
    sites: Sites = field(default_factory=Sites)
    _makers: dict[int, _Call] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=lambda: [0])

    def run(self, call: torch_private.Dispatched) -> Any:
        """Run one call as ``Predictor.run`` does, and record samples of it."""
        arguments = [leaf for leaf in call.flat[0] if _has_values(leaf)]
        samples = [self._sample(leaf) for leaf in arguments]
        for leaf in arguments:
            maker = self._makers.get(_memory(leaf))
            if maker is not None:
                maker.used = True
        shape = tuple(arguments[0].shape) if arguments else ()
        result = super().run(call)
        results = [leaf for leaf in torch_private.flat(result)[0] if _has_values(leaf)]
        first = self._sample(results[0]) if results else None
        sampled = _Call(operator_of(call), self.sites.here(), samples, first, shape)
        if not torch_private.aliasing_of(call.overload).views:
            self._makers.update((_memory(leaf), sampled) for leaf in results)
            if call.overload.name() not in _COPIES:
                self.calls.append(sampled)
        return result

    def _sample(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = values(tensor).detach().flatten()
        most = _SAMPLED if self._sizes[0] < _BUDGET else _FEW
        sample = flat[:: max(1, flat.numel() // most)].clone()
        self._sizes[0] += sample.numel()
        return sample


@dataclass(frozen=True)
class Jump:
    """Call whose result has more noise than its arguments: ``before`` and ``after`` are relative L2 errors.

    ``module`` is a path with the module's type; ``shape`` is the shape of the call's first argument. ``flushed`` is the
    fraction of the result's values that underflowed to zero.
    """

    operator: str
    module: str
    direction: Direction
    line: str | None
    before: float
    after: float
    shape: tuple[int, ...]
    flushed: float

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
        return origin.now, f"{origin.why}, and later operators make it finite; take {origin.advice}"
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
    more = list(dict.fromkeys(jump.module for jump in jumps[1:] if jump.module != jumps[0].module))
    also = f"; less so at {', '.join(more[:3])}" if more else ""
    return f"the noise jumps at {jumps[0]}{also}", f"{trouble}. {jumps[0].advice}"


def _trouble(run: CaseRun, group: str, share: float) -> str:
    """Describe whether float32's error is as large, in units of its own roundoff."""
    prefixes = ("output.", "buffer.")
    names = [
        name
        for name in run.prediction.noise
        if (name.startswith("output.") if group == "outputs" else not name.startswith(prefixes))
    ]
    wide = lost_share(run.fp32, run.prediction.exact, names)
    low, ratio = share / run.conditions.precision.u, wide / FP32.u
    numbers = (
        f"{low:.0f} roundings of {run.conditions.precision.name} ({share:.0%}), {ratio:.0f} of float32 ({wide:.1e})"
    )
    if ratio >= low * _SAME_TROUBLE:
        return f"ill conditioning, also in float32, in units of its own roundoff: {numbers}"
    return f"the low dtype itself, since float32 has no such trouble: {numbers}"


#: Fraction of values flushed to zero above which underflow is reported as the cause.
_MOSTLY = 0.5
#: Normalizations over a batch, whose conditioning depends on the number of values per channel.
_BATCH = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm_backward",
)
#: How to avoid a jump of the noise in an operator, by a pattern at the start of its name.
_ADVICE = {
    "native_layer_norm|native_group_norm|_fused_rms_norm": (
        "The rows that it normalizes are nearly constant: check with other inputs or weights, or bound its input"
    ),
    "(sin|cos|tan|remainder|fmod|frac|floor|round|trunc|ceil)$": (
        "Its argument is rounded by as much as its period: compute it, and what makes it, in float32"
    ),
    "(sgn|sign)$": (
        "Rounding decides the sign of its argument (that of an L1 loss, where outputs equal targets): compute what "
        "makes it in float32, or check with targets that differ from the outputs"
    ),
    "add|sub|rsub|sum|mean|var|std|cumsum|logsumexp": (
        "Terms cancel in it: compute it in float32 (x.float()), or subtract before squaring or summing"
    ),
}
_WIDEN = "Compute it, and what makes its input, in float32: x.float(), or autocast(enabled=False) around it"


def _advice(jump: Jump) -> str:
    name = jump.operator.removesuffix("_backward")
    if jump.flushed > _MOSTLY:
        return f"{jump.flushed:.0%} of what it returns underflows to 0: scale the loss, or compute that in float32"
    if name.startswith(_BATCH) and len(jump.shape) > 1:
        count = math.prod(jump.shape) // jump.shape[1]
        return (
            f"BatchNorm has {count} values of each channel there: check with a larger batch or larger inputs, or with "
            "that layer in eval()"
        )
    return next((advice for pattern, advice in _ADVICE.items() if re.match(pattern, name)), _WIDEN)


def jumps_of(  # noqa: PLR0913  # keywords of one run
    case: Case, realised: Realised, conditions: Conditions, region: Region, *, loss_scale: float, forward_only: bool
) -> list[Jump]:
    """Return the calls at which the noise jumps, the largest jump first, then jumps of similar size."""
    try:
        (exact, _), (rounded, names) = (
            _calls(case, realised, conditions, region, loss_scale, rounds=rounds) for rounds in (False, True)
        )
    except oracle.CannotFollow as failure:
        receive(failure)
        return []
    jumps = [
        Jump(
            operator=low.operator,
            module=in_words(low.site.module, names),
            direction=low.site.direction,
            line=low.site.line,
            before=noise[0],
            after=noise[1],
            shape=low.shape,
            flushed=_flushed(wide, low),
        )
        for wide, low in _aligned(exact, rounded)
        if low.used
        and not (forward_only and low.site.direction is Direction.BACKWARD)
        and (noise := _noise(wide, low)) is not None
    ]
    jumps.sort(key=lambda jump: jump.before - jump.after)
    return [jump for jump in jumps if jump.after - jump.before >= _ALSO * (jumps[0].after - jumps[0].before)]


def _calls(  # noqa: PLR0913  # keywords of one run
    case: Case, realised: Realised, conditions: Conditions, region: Region, loss_scale: float, *, rounds: bool
) -> tuple[list[_Call], dict[int, str]]:
    predictor, copied = _Sampled(conditions.device.type, rounds), realised.on(conditions.device.torch_device)
    with predictor.sites.followed():
        oracle.run_virtual(case, copied, region, predictor, seed=conditions.seed, loss_scale=loss_scale)
    return predictor.calls, {id(module): name for name, module in copied.model.named_modules()}


def _aligned(exact: list[_Call], rounded: list[_Call]) -> Iterator[tuple[_Call, _Call]]:
    """Yield pairs of corresponding calls, until rounding makes the program take another branch."""
    for wide, low in zip(exact, rounded, strict=False):
        if wide.operator != low.operator or wide.shape != low.shape:
            return
        yield wide, low


def _noise(exact: _Call, rounded: _Call) -> tuple[float, float] | None:
    """Return the relative errors of the arguments and of the result of a call, at most 1; None without a result.

    Tensors that consist of cancellation errors in float64 are ignored.
    """
    if exact.result is None or rounded.result is None:
        return None
    before = [_error(low, wide) for wide, low in zip(exact.arguments, rounded.arguments, strict=True)]
    after = _error(rounded.result, exact.result)
    if after > _VANISHES:
        return None
    return max((min(noise, 1.0) for noise in before if noise <= _VANISHES), default=0.0), min(after, 1.0)


def _flushed(exact: _Call, rounded: _Call) -> float:
    """Return the fraction of a result's values that are zero although the exact values are not."""
    if exact.result is None or rounded.result is None:
        return 0.0
    expected = exact.result != 0
    return float((expected & (rounded.result == 0)).sum()) / max(int(expected.sum()), 1)


def _error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative L2 error, without the values that are equal, such as infinite ones (of masks)."""
    size, far = norm(exact[exact.isfinite()]), norm((value - exact)[value != exact])
    if far == 0:
        return 0.0
    return far / size if size and math.isfinite(far) else math.inf


def _has_values(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and is_real(leaf) and not leaf.is_complex() and leaf.numel() > 0


def _memory(tensor: torch.Tensor) -> int:
    return int(values(tensor).untyped_storage().data_ptr())
