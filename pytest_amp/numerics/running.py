"""Report errors that user code raises inside a check in one form, with the line of user code."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from pytest_amp.account import receive
from pytest_amp.cases import Case, expect_python, failure_of, in_one_line, own_frames, passes
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.step import run_float32, run_step

__tracebackhide__ = is_usage_error

#: Modules of the compiler: the tracebacks of its errors are more useful than a single line.
_COMPILER = "torch._dynamo", "torch._inductor", "torch._functorch"


# These are classes: pytest would show contextlib's frame of a generator-based one, which cannot be hidden here.
@dataclass(frozen=True)
class ErrorsOfCase:
    """Attribute an error inside the block to ``case``, or to the other code that a test passes to a check.

    On an error, a step of the case alone is run. Raises DoesNotRun if it fails in mixed precision and in float32, and
    AmpFailure if it fails in mixed precision only. If the step runs, an error raised through user code becomes an
    AmpFailure, too. An error of torch, of its compiler or of the check propagates unchanged, as do usage errors and
    pytest's exceptions that end or skip a test.
    """

    case: Case
    conditions: Conditions

    def __enter__(self) -> None:
        """Do nothing: only an error on exit needs work."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Run the step alone if an error was raised."""
        if raised is None or passes(raised):
            return
        realised = self.case.realise(seed=self.conditions.seed)
        if "ScriptModule" in in_one_line(raised) or type(raised).__module__.startswith("torch._dynamo"):
            expect_python(realised.model, case=self.case.name)  # these errors say little about the check
        device = self.conditions.device.torch_device
        try:
            with runs_under(self.case, self.conditions):
                run_step(self.case, realised.on(device), self.conditions.region, seed=self.conditions.seed)
        except AmpFailure as failure:
            receive(failure)
            run_float32(self.case, realised.on(device), seed=self.conditions.seed)
            raise
        if trace is None or type(raised).__module__.startswith(_COMPILER) or not _is_of_project(raised, trace):
            return
        raise failure_of(
            f"{self.case.name}: code that the check calls",
            raised,
            expected="code that runs in each step of the check; a step of the case alone does, in float32 and under "
            f"{self.conditions}",
            likely="the training step, the optimizer or a hook that the test gives; or a model that takes no other "
            "dtypes, or not these values (an inf that the check plants)",
        ) from None


@dataclass(frozen=True)
class ErrorsOfFunction:
    """Convert an error of a function that a test passes in place of a case to an AmpFailure."""

    name: str

    def __enter__(self) -> None:
        """Do nothing: only an error on exit needs work."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report an error that was raised through user code."""
        if raised is None or trace is None or passes(raised) or not _is_of_project(raised, trace):
            return
        raise failure_of(
            self.name, raised, expected="a function that runs whenever it is called", likely="the function itself"
        ) from None


def _is_of_project(raised: BaseException, trace: TracebackType) -> bool:
    """Return whether the traceback of an error has a frame of user code inside the block."""
    below = trace.tb_next
    return bool(own_frames(raised, below)) if below is not None else False
