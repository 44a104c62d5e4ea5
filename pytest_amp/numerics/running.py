"""Errors that a project's own code raises inside a check, reported in one form with the project's own line."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from pytest_amp.account import receive
from pytest_amp.cases import Case, expect_python, failure_of, in_one_line, own_frames, passes
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.step import run_step, run_wide

__tracebackhide__ = is_usage_error

#: Modules whose errors are the compiler's: their tracebacks are more useful than one line.
_COMPILER = "torch._dynamo", "torch._inductor", "torch._functorch"


# No generators with contextlib.contextmanager: pytest would show contextlib's frame, which cannot be hidden here.
@dataclass(frozen=True)
class ToldOf:
    """Attribute an error inside the block to ``case``, or to the other code that a test passes to a check.

    Raises DoesNotRun if a step of the case alone raises in mixed precision and in float32, AmpFailure if it raises in
    mixed precision only. If the step runs, an error that has passed through the project's code becomes an AmpFailure,
    too; an error of torch, of its compiler or of the check is raised unchanged, as are refusals and pytest's exceptions
    that end or skip a test.
    """

    case: Case
    where: Conditions

    def __enter__(self) -> None:
        """Do nothing: only an error on exit needs work."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Run the step alone if an error was raised."""
        if raised is None or passes(raised):
            return
        realised = self.case.realise(seed=self.where.seed)
        if "ScriptModule" in in_one_line(raised) or type(raised).__module__.startswith("torch._dynamo"):
            expect_python(realised.model, case=self.case.name)  # the words of these say little of the check
        device = self.where.device.torch_device
        try:
            with runs_under(self.case, self.where):
                run_step(self.case, realised.on(device), self.where.region, seed=self.where.seed)
        except AmpFailure as failure:
            receive(failure)
            run_wide(self.case, realised.on(device), seed=self.where.seed)
            raise
        if trace is None or type(raised).__module__.startswith(_COMPILER) or not _is_of_project(raised, trace):
            return
        raise failure_of(
            f"{self.case.name}: code that the check calls",
            raised,
            expected="code that runs in each step of the check; a step of the case alone does, in float32 and under "
            f"{self.where}",
            likely="the training step, the optimizer or a hook that the test gives; or a model that takes no other "
            "dtypes, or not these values (an inf that the check plants)",
        ) from None


@dataclass(frozen=True)
class ToldOfFunction:
    """Turn an error of a function that a test passes in place of a case into an AmpFailure."""

    name: str

    def __enter__(self) -> None:
        """Do nothing: only an error on exit needs work."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report an error that has passed through the project's code."""
        if raised is None or trace is None or passes(raised) or not _is_of_project(raised, trace):
            return
        raise failure_of(
            self.name, raised, expected="a function that runs whenever it is called", likely="the function itself"
        ) from None


def _is_of_project(raised: BaseException, trace: TracebackType) -> bool:
    """Return whether an error has passed through a frame of the project below the frame with the block."""
    below = trace.tb_next
    return bool(own_frames(raised, below)) if below is not None else False
