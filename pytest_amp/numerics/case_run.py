"""One case in one check: its prediction and its steps in mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_amp.cases import Case, Realised
from pytest_amp.failure import is_usage_error
from pytest_amp.numerics import predicted as rounding
from pytest_amp.numerics.compare import Compared
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.locate import first_difference
from pytest_amp.numerics.oracle import observed_step, verdict
from pytest_amp.numerics.oracle.observer import ObservedCall
from pytest_amp.numerics.oracle.verdict import Fault
from pytest_amp.numerics.prediction import Prediction
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.repeated import unseeded
from pytest_amp.numerics.step import Step, in_words, run_step

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class CaseRun:
    """Shared state of the checks of one case."""

    case: Case
    realised: Realised
    conditions: Conditions
    prediction: Prediction
    fp32: Step
    tolerance: float | None

    def step(self) -> Step:
        """Run one step in mixed precision."""
        return self._step(self.realised, self.conditions.seed, self.prediction.loss_scale)

    def step_of(self, seed: int, loss_scale: float) -> Step:
        """Run one step with the values of another seed."""
        return self._step(realise(self.case, self.conditions, seed=seed), seed, loss_scale)

    def _step(self, realised: Realised, seed: int, loss_scale: float) -> Step:
        device, region = self.conditions.device.torch_device, self.conditions.region
        with runs_under(self.case, self.conditions):
            step = run_step(self.case, realised.on(device), region, seed=seed, loss_scale=loss_scale, replay=False)
        if isinstance(realised.draws, Draws):
            realised.draws.compare_end(device)
        return step

    def allowed(self, tensor: Compared) -> float:
        """Return the largest allowed error of a tensor."""
        limit = tensor.allowed if self.tolerance is None else self.tolerance
        return limit * self.conditions.tolerance_scale

    def allowed_plain(self, tensor: Compared) -> float:
        """Return the largest allowed E(amp, fp32), which includes the rounding error of float32."""
        return max(self.allowed(tensor), tensor.error) + tensor.of_float32 * self.conditions.tolerance_scale

    @cached_property
    def operators(self) -> tuple[ObservedCall, ...]:
        """Every operator call of a real step, compared with its model."""
        conditions, scale = self.conditions, self.prediction.loss_scale
        low = conditions.precision.dtype
        return observed_step(
            self.case, conditions.device, low, seed=conditions.seed, loss_scale=scale, realised=self.realised
        )

    @cached_property
    def faults(self) -> list[Fault]:
        """Calls that do not follow their model, worst kinds first."""
        return verdict.faults(self.operators, self.conditions.precision.dtype, self.conditions.tolerance_scale)

    @property
    def adds_in_any_order(self) -> bool:
        """True if a reduction of the step adds in any order: runs with the same values then differ in their errors."""
        return any(result.spread > 1.0 for call in self.operators for result in call.results)

    @property
    def unreplayed(self) -> str | None:
        """Text for a message about the random numbers that differ between steps; None if all of them are replayed."""
        draws = self.realised.draws
        return draws.explanation if isinstance(draws, Draws) else None

    def unseeded(self) -> str | None:
        """Return the reason why two runs of the step with one seed differ; None if they do not."""
        return unseeded(self.case, self.realised, self.fp32, self.conditions)

    def describe(self, name: str) -> str:
        """Return the name of a tensor in failures."""
        return f"{self.case.name}: {in_words(name)} under {self.conditions}"


def likely_cause(run: CaseRun) -> str:
    """Return the likely cause of a difference: the first place at which the forward pass differs from manual casts."""
    unseeded = run.unseeded()
    if unseeded is not None:
        return unseeded
    if not run.prediction.same_device:
        return "an operator ran or accumulated in the low dtype where it should not"
    if run.prediction.predicted is not None and run.faults:
        return rounding.first_fault(run.faults)
    realised = run.realised.on(run.conditions.device.torch_device)
    place = first_difference(run.case, realised, run.conditions.region, run.prediction.region, seed=run.conditions.seed)
    if place is not None:
        return f"an operator in or before {place} does not follow its rule, or accumulates in the low dtype"
    return "the modules' outputs agree with manual casts: the loss or a backward pass does not"


def other_names(names: Sequence[str]) -> str:
    """Return text that lists the tensors after the first that fail in the same way."""
    rest = list(names[1:])
    if not rest:
        return ""
    shown = ", ".join(rest[:3]) + (f" and {len(rest) - 3} more" if len(rest) > 3 else "")
    return f" (also {shown})"
