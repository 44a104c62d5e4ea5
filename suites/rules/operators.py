"""Operators on which the tests of this family run, and the interface that examines one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.rules.candidates import label_of
from pytest_amp.rules.checks import Checked, checked_from, observed_from
from pytest_amp.rules.manual_casts import dtype_argument
from pytest_amp.rules.observed import ObservedRule
from pytest_amp.rules.registry import Registry, qualified, read_registry, short, without_rule
from pytest_amp.rules.samples import has_samples
from pytest_amp.rules.spec import SPEC_FILE, Coverage, Rule, RuleName
from pytest_amp.rules.sweep import ExaminationFailed, Sweep
from pytest_amp.run.targets import Target


class Examiner:
    """Interface of one test to a sweep."""

    def __init__(self, amp: SuiteAmp, sweep: Sweep) -> None:
        """Store ``sweep``, the sweep of the device of ``amp``."""
        self._amp = amp
        self._sweep = sweep

    def __call__(self, check: str, overload: str) -> Checked:
        """Return the result of a check of pytest_amp.rules.checks.CHECKS; raise AmpFailure if the process breaks."""
        return checked_from(self._examine(check, overload))

    def rule(self, overload: str) -> ObservedRule:
        """Return the rule of an operator, determined by running it."""
        return observed_from(self._examine("rule", overload))

    def _examine(self, check: str, overload: str) -> dict[str, object]:
        try:
            return self._sweep.examine(check, overload, self._amp.dtype)
        except ExaminationFailed as failed:
            raise AmpFailure(f"{short(overload)} could not be examined: {failed}") from None


def is_judged(registry: Registry, amp: SuiteAmp) -> bool:
    """Return whether unknown operators fail: on a release that the spec covers, and elsewhere under --amp-strict."""
    return registry.coverage is Coverage.COVERED or amp.config.strict


def every_overload(target: Target) -> Iterable[str]:
    """Return every overload with an autocast kernel, and on a covered release every one that should have one.

    Include overloads that have a kernel in another release only: a baseline then shows that they gained one.
    """
    registry = read_registry(target.device.type)
    gone = registry.gone if registry.coverage is Coverage.COVERED else ()
    return sorted(short(name) for name in {*registry.registered, *gone, *without_rule(registry)})


def known_overloads(target: Target) -> Iterable[str]:
    """Return every overload with an autocast kernel, a rule in the spec, and sample arguments.

    The named dimensions of older releases have no samples: only test_rule covers them.
    """
    registry = read_registry(target.device.type)
    return sorted(short(name) for name in registry.registered if name in registry.expected and has_samples(name))


def overloads_with(*rules: RuleName) -> Callable[[Target], Iterable[str]]:
    """Return a function that lists the known_overloads with one of ``rules``."""

    def overloads(target: Target) -> Iterable[str]:
        expected = read_registry(target.device.type).expected
        return [name for name in known_overloads(target) if expected[qualified(name)].name in rules]

    return overloads


def overloads_with_a_dtype(target: Target) -> Iterable[str]:
    """Return the known_overloads that take a dtype."""
    return [name for name in known_overloads(target) if dtype_argument(qualified(name)) is not None]


def environment(amp: SuiteAmp) -> str:
    """Describe the software and the hardware, for failures."""
    return f"torch {torch.__version__}, {amp.device.describe()}"


def rule_in_spec(rule: Rule, amp: SuiteAmp) -> str:
    """Return a rule as written in the spec, for failures."""
    since = f" since torch {rule.since}" if rule.since else ""
    return f"{label_of(rule, amp.dtype)}{since} ({SPEC_FILE})"


def require(amp: SuiteAmp, checked: Checked, what: str, *, likely: str) -> None:
    """Fail if ``checked`` has a difference; ``what`` is the guarantee that is broken."""
    if checked.failures:
        rule = read_registry(amp.device.type).expected[checked.overload]
        raise AmpFailure(
            f"{short(checked.overload)} under autocast({amp.device.type}, {amp.precision.dtype_name}) {what}",
            label_before="rule",
            before=rule_in_spec(rule, amp),
            now=f"{checked.failures[0]}; {len(checked.failures)} in all, on {environment(amp)}",
            likely=likely,
        )
