"""Plan of one call of ``amp.check``: the checks of a case, with shared results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from pytest_amp import lint
from pytest_amp.account import receive
from pytest_amp.cases import Case, MakeOptimizer
from pytest_amp.check.collect import Collector
from pytest_amp.check.entry import Entry
from pytest_amp.check.evaluation_harm import is_measurable, measured_evaluation
from pytest_amp.check.harm import LIMIT, Harm, measured
from pytest_amp.check.report import Cost
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.lint import Severity
from pytest_amp.memory import Census, MemoryUse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.locate import module_runs
from pytest_amp.numerics.step import run_step
from pytest_amp.precision import FP16, dtype_name
from pytest_amp.training import TooLittleSeen, TrainingStep

__tracebackhide__ = is_usage_error

#: Numbers of steps, tried in order until the float32 loss has moved enough for a comparison.
STEPS = (12, 24, 48, 96)
#: Seconds after which no longer training begins, and the limit of a training without ``train``. They are seconds of
#: processor time, so that a verdict does not depend on other work of the machine.
BUDGET, CHEAP = 20.0, 8.0
#: Number of runs of a training (float32, four perturbed runs, mixed precision), and the factor by which observation
#: slows a step down.
RUNS, WATCHED = 6, 2.0


@dataclass
class Plan:
    """Case and user functions, with the results that the checks leave for the report."""

    case: Case
    where: Conditions
    collector: Collector
    _: KW_ONLY
    train: TrainingStep | None
    evaluate: Callable[[Any], Any] | None
    optimizer: MakeOptimizer | None
    dtypes: dict[str, str] = field(default_factory=dict)
    cost: Cost | None = None
    _has_sparse_gradients: bool = field(default=False, init=False)

    @property
    def needs_scaler(self) -> bool:
        """Return whether the dtype needs a scaler: gradients leave the range of fp16."""
        return self.where.precision.name == FP16.name

    @property
    def returns_low(self) -> bool:
        """Return whether a module returns a tensor of the dtype, in which a forward overflow can be planted."""
        name = self.where.precision.dtype_name
        return any(name in dtypes.split(", ") for dtypes in self.dtypes.values())

    def lint(self) -> None:
        """Run the linter over a step, the user's training step and the user's evaluation."""
        case, where, train, evaluate = self.case, self.where, self.train, self.evaluate
        lint_step, collector = "operators and dtypes of a step", self.collector
        collector.lint("linter", lambda: lint.findings_of_case(case, where), detail=lint_step)
        if train is not None:
            collector.lint(
                "linter: train",
                lambda: lint.findings_of_training(case, where, train, optimizer=self.optimizer),
                detail="operators and dtypes of the training step",
            )
        if evaluate is not None:
            collector.lint(
                "linter: evaluate",
                lambda: lint.findings_of_evaluation(case, where, evaluate, trained_low=True),
                detail="operators and dtypes of the evaluation",
            )

    def look_at_dtypes(self) -> None:
        """Note the dtypes that each module returns in mixed precision."""

        def look() -> None:
            realised = self.case.realise(seed=self.where.seed).on(self.where.device.torch_device)
            runs = module_runs(self.case, realised, self.where.region, seed=self.where.seed)
            for module, outputs in runs.dtypes.items():
                names = [dtype_name(dtype) for dtypes in outputs.values() for dtype in dtypes]
                self.dtypes[module] = ", ".join(dict.fromkeys(names))

        self.collector.run("dtypes", look, detail="what modules return, below")

    def note_cost(self, casts: Callable[[], Census], memory: Callable[[], MemoryUse]) -> None:
        """Run the checks of casts and of memory, and note the cost of a step."""
        census = self.collector.run("casts", casts, detail="copies between dtypes, as the rules ask for")
        use = self.collector.run("memory", memory, detail="bytes kept for backward, as the rules ask for")
        if census is not None:
            saved, ratio = (None, None) if use is None else (use.saved.bytes, use.saved_ratio)
            self.cost = Cost(census.count, census.bytes, saved, ratio)

    def measure_harm(self) -> None:
        """Measure the harm of the model's own low precision."""
        collector = self.collector

        def measure() -> float:
            harm = Harm(self.case, self.where, self.where.seed)
            entries, ratio = measured(harm, collector.entries)
            collector.replace_entries(entries)
            return ratio

        ratio = collector.run("harm", measure, detail="the model's own low precision beside float64")
        if ratio is not None and math.isnan(ratio):
            collector.retell(
                "cannot tell", detail="not measured: without the model's own low precision the step raises, or is "
                "not finite",
            )  # fmt: skip
        elif ratio is not None:
            verdict = _verdict_of_harm([entry for entry in collector.entries if entry.harm])
            times = "infinitely" if ratio == float("inf") else f"{ratio:.2f} times"
            collector.retell(
                verdict,
                detail=f"with its own low precision the step is {times} as far from float64 as without, "
                f"up to {LIMIT} allowed",
                margin=max(ratio - 1, 0.0) / (LIMIT - 1),
            )

    def measure_evaluation(self) -> None:
        """Measure the harm of the evaluation's own low precision to its metrics."""
        collector, evaluate = self.collector, self.evaluate
        if evaluate is None or not any(map(is_measurable, collector.entries)):
            return

        def measure() -> tuple[bool, str]:
            entries, unmeasured = measured_evaluation(self.case, self.where, evaluate, collector.entries)
            is_harmful = entries != collector.entries
            collector.replace_entries(entries)
            return is_harmful, unmeasured

        result = collector.run("harm: evaluate", measure, detail="metrics as they are, and without low precision")
        is_harmful, unmeasured = result or (False, "")
        if is_harmful:
            collector.retell("red", detail="the evaluation's own low precision changes its metrics")
        elif unmeasured:
            detail = f"not measured, since the evaluation cannot be repeated without its low precision: {unmeasured}"
            collector.retell("cannot tell", detail=detail)

    def train_with(self, check: Callable[[int], object]) -> None:
        """Run a training with as many steps as its loss needs, up to the last of ``STEPS`` or the budget."""
        step = self._seconds_of_a_step()
        if self.train is None and step * STEPS[0] * RUNS * WATCHED > CHEAP:
            reason = f"a step takes {step:.2g} s, and no train= was given: too long for a training"
            self.collector.skip("training", reason)
            return
        began = time.process_time()

        def long_enough() -> bool:
            """Train longer until the loss moves enough. Returns whether it does."""
            for steps in STEPS:
                last = time.process_time()
                try:
                    check(steps)
                except TooLittleSeen as failure:
                    receive(failure)
                    now = time.process_time()
                    is_late = now - began + 2 * (now - last) > BUDGET
                    if steps == STEPS[-1] or is_late:
                        self.collector.entries.append(_cannot_tell(steps, failure, is_late=is_late))
                        return False
                else:
                    return True
            return False

        is_long_enough = self.collector.run("training", long_enough, detail="steps beside float32's")
        if is_long_enough is False:
            self.collector.retell("cannot tell")

    @property
    def training_optimizer(self) -> MakeOptimizer | None:
        """The user's optimizer, or Adagrad for sparse gradients, which AdamW refuses; None for the default one."""
        return torch.optim.Adagrad if self.optimizer is None and self._has_sparse_gradients else self.optimizer

    def _seconds_of_a_step(self) -> float:
        """Time one step in mixed precision, the second one, and note whether it has sparse gradients."""
        seconds = 0.0
        try:
            realised = self.case.realise(seed=self.where.seed).on(self.where.device.torch_device)
            for _ in range(2):
                began = time.process_time()
                run_step(self.case, realised, self.where.region, seed=self.where.seed, replay=False)
                seconds = time.process_time() - began
            gradients = [parameter.grad for parameter in realised.model.parameters()]
            self._has_sparse_gradients = any(gradient is not None and gradient.is_sparse for gradient in gradients)
        except AmpFailure as failure:  # the checks report the failure
            receive(failure)
        except Exception:  # noqa: BLE001  # the model may raise anything
            return 0.0
        return seconds


def _verdict_of_harm(entries: Sequence[Entry]) -> str:
    if any(entry.is_error and (entry.harm or 0.0) > LIMIT for entry in entries):
        return "red"
    return "warning" if any((entry.harm or 0.0) > LIMIT for entry in entries) else "pass"


def _cannot_tell(steps: int, failure: TooLittleSeen, *, is_late: bool) -> Entry:
    mend = "give a train= or an optimizer= that learns the batch faster, or less dropout"
    if is_late and steps != STEPS[-1]:
        mend = (
            f"more steps would exceed the {BUDGET:.0f} s of processor time that amp.check has for a training: call "
            f"amp.check_training(case, steps={4 * steps}, ...) in a test of its own, which has no such limit; or {mend}"
        )
    return Entry(
        kind="training-cannot-tell",
        severity=Severity.WARNING,
        module="",
        site="",
        message=f"{steps} steps of training cannot tell mixed precision from float32: the loss needs a drop of "
        f"{failure.needed:.3g}, saw {failure.moved:.3g}",
        parts=(("mend", mend),),
    )
