"""The two classes of the fixture ``amp``: what users see, and what the suites need besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from pytest_amp.amp.compilation import CompileChecks
from pytest_amp.amp.costs import CostChecks
from pytest_amp.amp.loops import LoopChecks
from pytest_amp.amp.numerics import NumericChecks
from pytest_amp.failure import is_usage_error
from pytest_amp.run.identity import OBSERVATIONS

if TYPE_CHECKING:
    from pytest_amp.cases import Case
    from pytest_amp.check import Report
    from pytest_amp.check.collect import Collector
    from pytest_amp.config import AmpConfig
    from pytest_amp.numerics.conditions import Conditions
    from pytest_amp.run.targets import Target
    from pytest_amp.scaler import MakeOptimizer
    from pytest_amp.training import TrainingStep

__tracebackhide__ = is_usage_error

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Amp(NumericChecks, LoopChecks, CompileChecks, CostChecks):
    """Mixed precision on one device in one dtype, for one test: the fixture ``amp``."""

    #: Calls of ``check`` in the test; the keys of the second and later calls contain their number.
    _calls = 0

    def check(  # noqa: PLR0913  # keywords of one check
        self,
        case: Case,
        train: TrainingStep | None = None,
        evaluate: Callable[[Any], Any] | None = None,
        *,
        optimizer: MakeOptimizer | None = None,
        strict: bool = False,
        compile: bool = False,  # noqa: A002  # as torch.compile is called
        expect: Mapping[str, str | Sequence[str]] | None = None,
        nonfinite_buffers: Collection[str] = (),
    ) -> Report:
        """Check all that can be checked of a model and its loop, cheapest first, and fail once with all of it.

        ``train`` is the training step, as ``check_training`` takes it; ``evaluate`` an evaluation, which is given
        ``model``, ``batch``, ``loss()`` and ``autocast()`` and returns metrics by name; ``optimizer`` makes an
        optimizer of a list of parameters. What runs:

        - the linter, over the operators of a step, of ``train`` and of ``evaluate``;
        - the dtypes that modules return, ``check_casts`` and ``check_memory``;
        - ``check_gradients``, and the harm that the model's own low precision does, measured against float64, and
          that of the evaluation's own to its metrics;
        - ``check_scaler`` in fp16, or where there is a ``train`` that scales;
        - ``check_training``, with as many steps as the loss needs, where there is a ``train`` or a step is cheap, and
          with Adagrad for sparse gradients where there is no ``optimizer``;
        - ``check_compiled`` with ``compile``.

        Errors fail the test. Warnings do so with ``strict``, and are otherwise in the report, and in a note at the end
        of the run. ``expect`` accepts findings by module and kind, ``{"layers.0.norm": "low-norm", "": ["low-loss"]}``,
        and fails the test where one of them no longer occurs; a module may be a pattern, as of file names.
        ``nonfinite_buffers`` are those in which ``check_scaler`` accepts an inf, as its own argument of this name.

        Returns a report that prints as one page. Raises AmpFailure with everything that is wrong, worst first, and
        AmpUsageError for arguments that cannot be.
        """
        from pytest_amp import cases
        from pytest_amp.check import Collector, Plan, conclude, expect_expected

        self._expect_case(case, "check")
        cases.expect_step(train)
        cases.expect_maker(optimizer)
        cases.expect_flag("strict", strict)
        cases.expect_flag("compile", compile)
        cases.expect_names("nonfinite_buffers", nonfinite_buffers)
        accepted = expect_expected(expect)
        self._calls += 1
        collector = Collector(self._item.stash[OBSERVATIONS])
        plan = Plan(case, self._conditions, collector, train=train, evaluate=evaluate, optimizer=optimizer)
        plan.lint()
        plan.look_at_dtypes()
        plan.note_cost(self._within("casts", self.check_casts, case), self._within("memory", self.check_memory, case))
        gradients = self._within("gradients", self.check_gradients, case)
        collector.run("gradients", gradients, detail="outputs and gradients compared with float64")
        plan.measure_harm()
        plan.measure_evaluation()
        self._check_loop(plan, collector, nonfinite_buffers)
        if compile:
            compiled = self._within("compiled", self.check_compiled, case)
            collector.run("compiled", compiled, detail="torch.compile compared with eager")
        report = conclude(plan, accepted, strict=strict)
        if report.warnings:
            self._note(report.warnings_line(case.name))
        return report

    def _check_loop(self, plan: Any, collector: Collector, nonfinite_buffers: Collection[str]) -> None:
        """Check the training step with a scaler, and a training of as many steps as the loss needs."""
        case, train, optimizer = plan.case, plan.train, plan.optimizer
        if plan.needs_scaler:
            overflow_activations_at = None if plan.returns_low else ()
            scaler = self._within(
                "scaler",
                self.check_scaler,
                case,
                train=train,
                optimizer=optimizer,
                overflow_activations_at=overflow_activations_at,
                nonfinite_buffers=nonfinite_buffers,
            )
            collector.run("scaler", scaler, detail="a step with GradScaler, overflow planted in it")

        def trained(steps: int) -> object:
            make = plan.training_optimizer
            return self._within("training", self.check_training, case, steps=steps, train=train, optimizer=make)()

        plan.train_with(trained)

    def _within(
        self, section: str, check: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Callable[[], _Result]:
        """Return a call of a check whose observations have ``section`` in their keys."""

        def call() -> _Result:
            self._section = section if self._calls == 1 else f"{self._calls}/{section}"
            try:
                return check(*args, **kwargs)
            finally:
                self._section = ""

        return call


class SuiteAmp(Amp):
    """The fixture ``amp`` with what only the suites need: the target, the options, and what a suite says is missing."""

    @property
    def target(self) -> Target:
        """Device and precision of the test, with the cases that hooks add."""
        return self._target

    @property
    def config(self) -> AmpConfig:
        """Options and ini values of the run."""
        return self._config

    @property
    def conditions(self) -> Conditions:
        """Device, precision, seed and tolerance scale, as functions of pytest_amp.numerics take them."""
        return self._conditions

    def missing(self, what: str, reason: str) -> NoReturn:
        """Say that this test cannot look, since ``what`` is missing: ``sweep`` (torch's own tests), ``compiler``.

        Raises AmpFailure with ``reason``; where --amp-allow-missing names ``what``, skips, and lets the family
        end without one executed check on this target.
        """
        self._missing(what, reason)

    def need_compiler(self) -> None:
        """Say that this test cannot look where inductor has no compiler: ``missing("compiler", …)``.

        Called where compiled code may be left: in a sandbox of ``pytest_amp.compiled``.
        """
        self._need_compiler()
