"""Which operators the tests of this family run on, and how a test asks about one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pytest_amp.amp import Amp
from pytest_amp.failure import AmpFailure
from pytest_amp.rules.checks import Checked, checked_from, observed_from
from pytest_amp.rules.hand_cast import dtype_argument
from pytest_amp.rules.observe import ObservedRule, label_of
from pytest_amp.rules.registry import Registry, qualified, read_registry, short, without_rule
from pytest_amp.rules.samples import has_samples
from pytest_amp.rules.spec import SPEC_FILE, Coverage, Rule, RuleName
from pytest_amp.rules.sweep import ExaminationFailed, Sweep
from pytest_amp.targets import Target


class Examiner:
    """Asks a sweep about operators, for one test."""

    def __init__(self, amp: Amp, sweep: Sweep) -> None:
        """``sweep`` is the one of amp's device."""
        self._amp = amp
        self._sweep = sweep

    def __call__(self, check: str, overload: str) -> Checked:
        """The result of a check of pytest_amp.rules.checks.CHECKS; AmpFailure if the operator breaks the process."""
        return checked_from(self._examine(check, overload))

    def rule(self, overload: str) -> ObservedRule:
        """The rule of an operator, found by running it."""
        return observed_from(self._examine("rule", overload))

    def _examine(self, check: str, overload: str) -> dict[str, object]:
        try:
            return self._sweep.examine(check, overload, self._amp.dtype)
        except ExaminationFailed as failed:
            raise AmpFailure(f"{short(overload)} could not be examined: {failed}") from None


def is_judged(registry: Registry, amp: Amp) -> bool:
    """Whether what the spec does not know fails: on a release that it covers, and elsewhere under --amp-strict."""
    return registry.coverage is Coverage.COVERED or amp.config.strict


def every_overload(target: Target) -> Iterable[str]:
    """Every overload with an autocast kernel, and on a covered release every one that should have one.

    And those that have none here, but in another release: a baseline then has that they got one.
    """
    registry = read_registry(target.device.type)
    gone = registry.gone if registry.coverage is Coverage.COVERED else ()
    return sorted(short(name) for name in {*registry.registered, *gone, *without_rule(registry)})


def known_overloads(target: Target) -> Iterable[str]:
    """Every overload with an autocast kernel whose rule the spec has and for which there are sample arguments.

    There are none for the named dimensions of older releases: test_rule alone says what it can of them.
    """
    registry = read_registry(target.device.type)
    return sorted(short(name) for name in registry.registered if name in registry.expected and has_samples(name))


def overloads_with(*rules: RuleName) -> Callable[[Target], Iterable[str]]:
    """Those of known_overloads that have one of ``rules``."""

    def those(target: Target) -> Iterable[str]:
        expected = read_registry(target.device.type).expected
        return [name for name in known_overloads(target) if expected[qualified(name)].name in rules]

    return those


def overloads_with_a_dtype(target: Target) -> Iterable[str]:
    """Those of known_overloads that take a dtype."""
    return [name for name in known_overloads(target) if dtype_argument(qualified(name)) is not None]


def where(amp: Amp) -> str:
    """The software and the hardware, for failures."""
    return f"torch {torch.__version__}, {amp.device.describe()}"


def written(rule: Rule, amp: Amp) -> str:
    """A rule as the spec has it, for failures."""
    since = f" since torch {rule.since}" if rule.since else ""
    return f"{label_of(rule, amp.dtype)}{since} ({SPEC_FILE})"


def require(amp: Amp, checked: Checked, what: str, *, likely: str) -> None:
    """Fail if ``checked`` found a difference; ``what`` is the guarantee that is broken."""
    if checked.failures:
        rule = read_registry(amp.device.type).expected[checked.overload]
        raise AmpFailure(
            f"{short(checked.overload)} under autocast({amp.device.type}, {amp.precision.dtype_name}) {what}",
            label_before="rule",
            before=written(rule, amp),
            now=f"{checked.failures[0]}; {len(checked.failures)} in all, on {where(amp)}",
            likely=likely,
        )
