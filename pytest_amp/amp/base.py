"""Base of all checks of the fixture ``amp``: the target, the recorder, the user's case."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import pytest

from pytest_amp.account import use
from pytest_amp.config import MAY_BE_MISSING
from pytest_amp.data_files.releases import installed_torch
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.families import PROJECT
from pytest_amp.markers import AmpMarker
from pytest_amp.precision import LOW
from pytest_amp.record import (
    DRAWS,
    FAILING,
    Baseline,
    Better,
    Kind,
    Observation,
    Observe,
    Value,
    Verdict,
    check_value,
    check_written,
    make_key,
    moved,
)
from pytest_amp.record.cause import likely_cause
from pytest_amp.run.identity import INFO, MARKER, NOTES, OBSERVATIONS, own_parameters
from pytest_amp.run.session import RunContext
from pytest_amp.run.state_guard import autocast_on
from pytest_amp.run.targets import Target

if TYPE_CHECKING:
    import torch

    from pytest_amp.cases import Case, Outputs
    from pytest_amp.config import AmpConfig
    from pytest_amp.devices import Device
    from pytest_amp.numerics.conditions import Conditions
    from pytest_amp.precision import Precision

__tracebackhide__ = is_usage_error

_KINDS = {kind.value: kind for kind in Kind}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _of_other_seeds(name: str, kind: str, errors: object) -> tuple[float, ...]:
    values = [*errors] if isinstance(errors, (tuple, list)) else []
    numbers = [value for value in values if _is_number(value)]
    if kind != "error" or not numbers or len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        raise AmpUsageError(f"{name}: over_seeds={errors!r}; expected finite numbers, of an error")
    return tuple(map(float, numbers))


def _encloses(interval: object, value: Value) -> bool:
    ends = interval if isinstance(interval, (tuple, list)) else ()
    numbers = [end for end in (*ends, value) if _is_number(end)]
    return len(ends) == 2 and len(numbers) == 3 and numbers[0] <= numbers[2] <= numbers[1]


class Bound:
    """Base class of the checks: one test, bound to a device and a dtype."""

    def __init__(self, request: pytest.FixtureRequest, target: Target, run: RunContext) -> None:
        """Bind to ``target``; the fixture calls this, and ``request`` is the running test's."""
        item: pytest.Item = request.node
        self._request = request
        self._item = item
        self._run = run
        self._target = target
        self._precision = target.bound_precision()
        self._config: AmpConfig = run.options
        self._marker: AmpMarker = item.stash[MARKER]
        item.stash[OBSERVATIONS] = []  # set anew: a plugin may run the test again
        item.stash[NOTES] = []
        #: Check within ``check`` that observes. It is part of keys, so that a parameter may have the name of a fact.
        self._section = ""

    @property
    def device(self) -> Device:
        """The device under test; ``amp.device.torch_device`` is what ``device=`` takes."""
        return self._target.device

    @property
    def precision(self) -> Precision:
        """The precision under test: its name, its bits, its rounding unit ``u``."""
        return self._precision

    @property
    def dtype(self) -> torch.dtype:
        """The autocast dtype."""
        return self.precision.dtype

    def autocast(
        self, *, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool = True
    ) -> AbstractContextManager[None]:
        """An autocast region on this device, in this dtype unless another is given, which has to be low."""
        return self._target.autocast(dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def record(  # noqa: PLR0913  # keywords of one number
        self,
        name: str,
        value: Value,
        *,
        unit: str | None = None,
        better: str = "same",
        interval: tuple[float, float] | None = None,
        margin: float | None = None,
    ) -> Observation:
        """Record a value of your own, as ``family/device/dtype/name``, and compare it with the baseline's.

        ``better`` says which way it should go: ``"lower"`` and ``"higher"`` take a finite number, and the
        test fails where that is worse than the baseline's by more than ``margin`` (relative; 0.05). With
        ``interval``, the two ends between which the true value lies, the whole of it has to be worse than
        the whole of the baseline's; where both are too wide to tell, that is inconclusive. Numbers from
        other hardware, another seed or another tolerance scale are inconclusive, too. ``"same"`` takes any
        plain JSON, and the test fails where it is not what the baseline has. Without a baseline the number
        is recorded only.

        Raises AmpFailure, and AmpUsageError for what cannot be recorded.
        """
        valid = [option.value for option in Better]
        if better not in valid:
            raise AmpUsageError(f"better={better!r}; expected {', '.join(valid)}")
        finite = not isinstance(value, float) or math.isfinite(value)
        if better != "same" and not (finite and _is_number(value)):
            raise AmpUsageError(f"{name}: {value!r} is not a finite number, which better={better!r} compares")
        if not finite:
            raise AmpUsageError(f"{name}: {value!r} says nothing, and would stay the same; expected a finite number")
        if interval is not None and (better == "same" or not _encloses(interval, value)):
            raise AmpUsageError(
                f"{name}: interval={interval!r}; expected two numbers with {value!r} between them, and a direction"
            )
        if margin is not None and not (better != "same" and _is_number(margin) and 0 <= margin < math.inf):
            raise AmpUsageError(
                f"{name}: margin={margin!r}; expected a number from 0 for what is better lower or higher"
            )
        return self.observe(name, value, kind="measure", unit=unit, interval=interval, better=better, margin=margin)

    def observe(  # noqa: PLR0913  # keywords of one fact
        self,
        name: str,
        value: Value,
        *,
        kind: str,
        unit: str | None = None,
        allowed: float | None = None,
        interval: tuple[float, float] | None = None,
        over_seeds: tuple[float, ...] | None = None,
        better: str | None = None,
        margin: float | None = None,
    ) -> Observation:
        """Record a fact as ``family/device/dtype/name``, as the suites do; ``record`` is for numbers of your own.

        ``kind`` is one of ``rule``, ``dtype``, ``count`` and ``state`` (the same in every run: with a baseline a
        difference fails the test), or ``error``, ``ratio``, ``seconds``, ``bytes``, ``measure`` and ``series``
        (recorded; an error that grew fails the test, and so does another number that is worse, if ``better`` says which
        way it should go). ``allowed`` is what the check accepted, in ``unit``. A number that is not finite makes the
        test red, whatever is allowed; so does an ``allowed`` that is not finite. ``interval`` is where the true value
        lies, as the order statistics of a speedup. ``over_seeds`` is what an error is with the numbers of the seeds
        after the run's own, as the method ``over_seeds`` measures it; a comparison goes by those of both runs. Raises
        AmpFailure where the baseline disagrees, AmpUsageError for a bad name, kind or value, and for a name that the
        test has used before.
        """
        use()
        info = self._item.stash[INFO]
        if not isinstance(kind, str) or kind not in _KINDS:
            raise AmpUsageError(f"kind={kind!r} is not a kind of observation; expected {', '.join(_KINDS)}")
        try:
            key = make_key(info.family, self.device.key, self.precision.name, name)
            check_value(key, value)
            expected = None if better is None else Better(better)
        except ValueError as error:
            raise AmpUsageError(str(error)) from None
        for named, number in (("allowed", allowed), ("margin", margin)):
            if number is not None and not _is_number(number):
                raise AmpUsageError(f"{name}: {named}={number!r}; expected a number")
        if margin is not None and not 0 <= margin < math.inf:
            raise AmpUsageError(f"{name}: margin={margin!r}; expected a finite number from 0")
        if interval is not None and not _encloses(interval, value):
            raise AmpUsageError(f"{name}: interval={interval!r}; expected two numbers with {value!r} between them")
        further = None if over_seeds is None else _of_other_seeds(name, kind, over_seeds)
        if any(earlier.key == key for earlier in self._item.stash[OBSERVATIONS]):
            raise AmpUsageError(
                f"{key} is observed twice; one name, one fact: give each its own, as amp.case(..., name=) does"
            )
        ends = None if interval is None else (interval[0], interval[1])
        observation = Observation(
            key,
            _KINDS[kind],
            value,
            unit,
            allowed,
            test=info.test,
            interval=ends,
            over_seeds=further,
            better=expected,
            margin=margin,
        )
        try:
            check_written(observation)
        except ValueError as error:
            raise AmpUsageError(str(error)) from None
        return self._add(observation)

    def _add(self, observation: Observation) -> Observation:
        """Add an observation to the test and compare it with the baseline. Raises AmpFailure where they disagree."""
        baseline = self._run.baseline
        if baseline is not None:
            observation = baseline.compare(observation, {row.key: row for row in self._item.stash[OBSERVATIONS]})
        self._item.stash[OBSERVATIONS].append(observation)
        verdict = observation.verdict
        self._item.user_properties.append((f"amp {observation.key}", f"{observation.value} ({verdict.value})"))
        if baseline is not None and verdict in FAILING and not self._config.accept:
            self._differs(observation, baseline)
        return observation

    def _differs(self, observation: Observation, baseline: Baseline) -> NoReturn:
        """Raise AmpFailure for an observation that differs from the baseline."""
        import torch

        before = baseline.before(observation.key)
        assert before is not None
        relation = "worse than" if observation.verdict is Verdict.REGRESSED else "no longer"
        unit, how = (
            f" {observation.unit}" if observation.unit and _is_number(observation.value) else "",
            moved(observation, before),
        )
        raise AmpFailure(
            f"{observation.name} on {self._target.id} is {relation} what the baseline has",
            label_before="baseline",
            before=f"{observation.baseline}{unit} on torch {baseline.torch}",
            now=f"{observation.value}{unit}{f' ({how})' if how else ''} on torch {torch.__version__}, "
            f"{self.device.describe()}",
            likely=self._likely(observation, baseline),
            accept="the same command with --amp-accept",
        )

    def _note(self, text: str) -> None:
        """Add a line to the notes of the run, which its summary and its reports show; a note fails nothing."""
        self._item.stash[NOTES].append(f"{self._target.id}: {text}")

    def _likely(self, observation: Observation, baseline: Baseline) -> str:
        revised = baseline.revised.get(observation.family)
        if revised is not None:
            return (
                f"the tests of {observation.family} changed since the baseline was recorded (revision {revised[0]} -> "
                f"{revised[1]}): record the earlier torch with these tests"
            )
        from pytest_amp.report.reasons import reasons

        known = reasons([observation], baseline.record.provenance.get("torch"), installed_torch()).get(observation.key)
        if observation.kind is Kind.MEASURE:
            return known or "what the test measures, torch, or what else this machine does"
        return known or likely_cause(baseline.record.provenance, baseline.now, self.device.key)

    def _missing(self, what: str, reason: str) -> NoReturn:
        """Fail the test, or skip it if --amp-allow-missing names ``what``; see ``SuiteAmp.missing``."""
        if what not in MAY_BE_MISSING:
            raise AmpUsageError(
                f"{what!r} is not a requirement that may be missing; expected {', '.join(MAY_BE_MISSING)}"
            )
        if what not in self._config.allow_missing:
            raise AmpFailure(reason, accept=f"--amp-allow-missing={what} skips checks with missing requirements")
        self._item.stash[INFO] = replace(self._item.stash[INFO], allowed_missing=True)
        pytest.skip(f"missing, as --amp-allow-missing allows: {reason}")

    def case(
        self,
        build: Callable[[], torch.nn.Module],
        batch: Callable[[], Any],
        loss: Callable[[torch.nn.Module, Any], Outputs],
        *,
        name: str | None = None,
    ) -> Case:
        """A case to check: ``build`` makes the model, ``batch`` the data, ``loss`` takes both.

        Model and batch are made on the CPU in float32 after torch has been seeded, and copied to the device. ``loss``
        returns a tensor with one element, or outputs by name in a dict, a dataclass or a named tuple, of which ``loss``
        is differentiated, or the sum of all where none is called so. Floating tensors of the batch that require a
        gradient have theirs compared, too. ``name`` is part of observation keys; without one it is the test's, with the
        test's own parameters. Raises AmpUsageError for a module, or another object, in place of a function that creates
        it, and on a fake device, where nothing is computed.
        """
        import torch

        from pytest_amp.cases import Case, takes

        if self.device.kind is DeviceKind.FAKE:
            raise AmpUsageError(
                f"{self.device.name} has rules and no arithmetic, so that no case runs there; expected a real device, "
                "or operators under amp.autocast() on tensors that are made within amp.device.tensors()"
            )
        anew, both = (
            "a function that makes it, for it is made anew for each run",
            "a function of the model and the batch",
        )
        for argument, value, accepted, valid in (
            ("build", build, (), anew),
            ("batch", batch, (), anew),
            ("loss", loss, (None, None), both),
        ):
            if not callable(value) or isinstance(value, torch.nn.Module):
                raise AmpUsageError(f"{argument} is {type(value).__name__}; expected {valid}")
            if not takes(value, *accepted):
                raise AmpUsageError(
                    f"{argument} takes other arguments than {len(accepted) or 'none'}; expected {valid}"
                )
        if name is None:
            name = self._own_name()
        if not isinstance(name, str):
            raise AmpUsageError(f"name={name!r}; expected text")
        try:
            make_key(self._item.stash[INFO].family, self.device.key, self.precision.name, name)
        except ValueError:
            raise AmpUsageError(f"name={name!r}; expected printable text that begins and ends with no blank") from None
        return Case(name, build, batch, loss)

    def _observing(self, case: Case) -> Observe:
        """Return the function that records the facts of a check of ``case``.

        In a project's own tests the test is part of the key: two tests may check the same case, or cases of one name.
        """
        info = self._item.stash[INFO]
        if info.family != PROJECT.name:
            return self.observe
        parameters = own_parameters(self._item, self._target)
        test = f"{info.test}[{parameters}]" if parameters else info.test
        if self._section:
            test = f"{test}/{self._section}"
        is_named = case.name != self._own_name()

        def observe(name: str, value: Value, **facts: Any) -> Observation:
            return self.observe(f"{test}/{name if is_named else name.removeprefix(f'{case.name}/')}", value, **facts)

        return observe

    def _own_name(self) -> str:
        """Return the test's name without device and dtype, as keys use it: ``test_mlp[cpu-bf16-3]`` is ``mlp[3]``."""
        function = self._item.stash[INFO].test.partition("::")[2].removeprefix("test_")
        parameters = own_parameters(self._item, self._target)
        return f"{function}[{parameters}]" if parameters else function

    def _expect_case(self, case: object, check: str, *, low: bool = True) -> None:
        """Check what every check of a case needs: a case, an autocast dtype if ``low``, and no surrounding region.

        Raises AmpUsageError, and AmpFailure in a region.
        """
        from pytest_amp import cases

        use()
        cases.expect_case(case, check=check)
        if low:
            self._refuse_wide(check)
        self._refuse_ambient(check)

    def _refuse_wide(self, check: str) -> None:
        """Raise AmpUsageError unless the test runs in an autocast dtype: else there is no mixed precision to check."""
        if not self.precision.is_low:
            low = ", ".join(LOW)
            raise AmpUsageError(
                f"{check} needs an autocast dtype, and this test runs in {self.precision.name}; expected {low}"
            )

    def _refuse_ambient(self, check: str) -> None:
        """Raise AmpFailure under autocast: the float32 side of a check must be computed outside of it."""
        on = autocast_on("cpu", self.device.type)
        if on:
            raise AmpFailure(
                f"{check} was called while autocast({', '.join(on)}) is on, and has no float32 to compare with",
                likely="it is called inside a region, or a wider fixture or a test without amp left autocast on",
            )

    @property
    def _conditions(self) -> Conditions:
        """Device, precision, seed and tolerance scale, as functions of pytest_amp.numerics take them."""
        from pytest_amp.numerics.conditions import Conditions

        config = self._config
        return Conditions(self.device, self.precision, config.seed, config.tolerance_scale, self._draws)

    @property
    def _draws(self) -> int:
        """Return over how many seeds an error is observed: several if the run is recorded or compared, else one."""
        return DRAWS if self._run.retains_values or self._config.baseline else 1
