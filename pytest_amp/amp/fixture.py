"""The two classes of the fixture ``amp``: what users see, and what the suites need besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pytest_amp.amp.whole import WholeCheck
from pytest_amp.failure import is_usage_error

if TYPE_CHECKING:
    from pytest_amp.config import AmpConfig
    from pytest_amp.numerics.conditions import Conditions
    from pytest_amp.run.targets import Target

__tracebackhide__ = is_usage_error


class Amp(WholeCheck):
    """Mixed precision on one device in one dtype, for one test: the fixture ``amp``."""


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
