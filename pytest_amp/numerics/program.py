"""Check that low precision changes only the rounding of a model, not the function that its Python code computes.

A prediction runs the model's own Python code on virtual dtypes. If that takes a wrong branch for low-precision tensors,
the prediction does, too, and the error would count as noise. Therefore the same code runs once more on virtual dtypes
without any rounding. All values are then equal to float64's, unless the code computes something else in low precision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from pytest_amp import torch_private
from pytest_amp.account import receive
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics import oracle, tolerance
from pytest_amp.numerics.case_run import CaseRun, other_names
from pytest_amp.numerics.causes import operator_of
from pytest_amp.numerics.errors import exceeds
from pytest_amp.numerics.prediction import step_errors
from pytest_amp.numerics.repeated import expect_repeatable
from pytest_amp.numerics.sites import Site, Sites, in_words
from pytest_amp.numerics.step import Region, Step
from pytest_amp.record import Observe

__tracebackhide__ = is_usage_error

#: Operators that cast or copy values, including those of parameters.
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::clone", "aten::detach"})
#: float64 has a roundoff of 2**-53; a long sum in another order loses a few bits more.
_NOTHING = 2.0**-40


class OtherProgram(AmpFailure):
    """Failure of a model that computes something else on low-precision tensors, even without rounding."""


def check_program(run: CaseRun, observe: Observe) -> None:
    """Compare the program on low-precision dtypes with the float32 program, both without rounding.

    Raises AmpFailure if they differ by more than rounding does; a smaller difference is observed as
    ``<case>/summary.own_error``. A step with operators that have no model is not checked.
    """
    prediction = run.prediction
    if prediction.predicted is None or prediction.unmodelled:
        return
    unrounded = _without_rounding(run, prediction.region)
    if unrounded is None:
        return
    exact, u = prediction.exact, run.conditions.precision.u
    own_error = step_errors(unrounded, exact, exact)
    by_rounding = step_errors(prediction.predicted, unrounded, exact)
    by_casts = step_errors(prediction.reference, unrounded, exact)
    limits = {}
    for name, value in exact.named().items():
        if name in own_error and value.numel():
            few = value.numel() < tolerance.ENOUGH  # a single draw of few errors may be small by chance
            noise = max(by_rounding[name], by_casts[name]) if few else by_rounding[name]
            limits[name] = tolerance.allowed(noise, value.numel(), u) * run.conditions.tolerance_scale
    bad = sorted((name for name in limits if exceeds(own_error[name], limits[name])), key=lambda name: -own_error[name])
    if bad:
        expect_repeatable(run.case, run.realised, run.fp32, run.conditions)
        raise _failure(run, bad, error=own_error[bad[0]], noise=by_rounding[bad[0]])
    most = max((own_error[name] for name in limits), default=0.0)
    if most > _NOTHING:
        observe(f"{run.case.name}/summary.own_error", most, kind="error", unit="relative L2")


def _without_rounding(run: CaseRun, region: Region, calls: _Calls | None = None) -> Step | None:
    """Run the step in ``region`` on virtual dtypes without rounding; return None if the oracle does not support it."""
    device = run.conditions.device
    predictor = oracle.Predictor(device.type, rounds=False, notice=None if calls is None else calls.notice)
    realised, scale = run.realised.on(device.torch_device), run.prediction.loss_scale
    try:
        with contextlib.nullcontext() if calls is None else calls.followed(realised.model):
            step = oracle.run_virtual(
                run.case, realised, region, predictor, seed=run.conditions.seed, loss_scale=scale
            ).step
    except oracle.CannotFollow as lost:
        receive(lost)
        return None
    return None if predictor.unmodelled else step


@dataclass(frozen=True)
class _Call:
    """Call that computes values: its place as text, its line, and the rounded sum of its first result's magnitudes.

    Nine digits of this sum distinguish results, and do not depend on the order of summation in float64. ``is_own`` is
    True in a backward pass of the user's own.
    """

    place: str
    line: str | None
    size: str
    is_own: bool


@dataclass
class _Calls:
    """Recorder of the calls of a step."""

    all: list[_Call] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    _sites: Sites = field(default_factory=Sites)

    @contextlib.contextmanager
    def followed(self, model: torch.nn.Module) -> Iterator[None]:
        """Track which module of ``model`` is running inside the block."""
        self.names.update({id(module): name for name, module in model.named_modules()})
        with self._sites.followed():
            yield

    def notice(self, call: torch_private.Dispatched, result: object) -> None:
        """Record one call, unless it only copies, casts or views its arguments."""
        site = self._sites.here()
        if call.overload.name() in _COPIES or torch_private.aliasing_of(call.overload).views:
            return
        for value in torch_private.flat(result)[0]:
            values = torch_private.values_of(value) if isinstance(value, torch.Tensor) else None
            if values is not None and values.is_floating_point():
                size = f"{float(values.abs().sum()):.9e}"
                self.all.append(_Call(self._place(call, site), site.line, size, site.is_own))
                return

    def _place(self, call: torch_private.Dispatched, site: Site) -> str:
        return f"{operator_of(call)} in {in_words(site.module, self.names)}, {site.direction.value} pass"


def _first_of_its_own(run: CaseRun) -> tuple[_Call | None, str | None]:
    """Find the first call on low-precision dtypes whose result the float32 program never computes, and its line.

    If the call before it is the last one of a user's backward pass, that returns what float32 computes on the way only:
    the line is that one's.
    """
    low, float32 = _Calls(), _Calls()
    _without_rounding(run, run.prediction.region, low)
    _without_rounding(run, contextlib.nullcontext, float32)
    known = {call.size for call in float32.all}
    index = next((index for index, call in enumerate(low.all) if call.size not in known), None)
    if index is None:
        return None, None
    call, before = low.all[index], low.all[max(index - 1, 0)]
    return call, before.line if before.is_own and not call.is_own else call.line


def _failure(run: CaseRun, bad: list[str], *, error: float, noise: float) -> OtherProgram:
    call, line = _first_of_its_own(run)
    return OtherProgram(
        f"{run.describe(bad[0])} differs from float64 by {error:.3g} before anything is rounded{other_names(bad)}",
        label_before="expected",
        before=f"float64's values, on any dtypes; rounding takes it {noise:.3g} away",
        now=run.conditions.now(
            "no single operator shows it"
            if call is None
            else f"the first result that the float32 program does not have: {call.place}"
        ),
        site=line,
        likely="a branch for low-precision tensors, or for autocast, that computes something else than that of float32",
    )
