"""Whether what a check met is the case itself, which does not run in mixed precision."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from pytest_amp.cases import Case, expect_python
from pytest_amp.failure import AmpFailure, Misuse, is_misuse
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.step import run_step, run_wide

__tracebackhide__ = is_misuse


# No generator under contextlib.contextmanager: pytest would show contextlib's frame, which is not ours to hide.
@dataclass(frozen=True)
class ToldOf:
    """What torch raises within is told of ``case``, if a step of it alone raises in mixed precision, too.

    Raises DoesNotRun where it does not run in float32, either, else AmpFailure. Where the step runs, what was raised
    goes on: it came of something else, such as a training step of the user's own.
    """

    case: Case
    where: Conditions

    def __enter__(self) -> None:
        """Nothing is made before something is raised."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Run the step alone, where torch has raised."""
        if not isinstance(raised, RuntimeError) or isinstance(raised, Misuse):
            return
        realised = self.case.realise(seed=self.where.seed)
        if "ScriptModule" in str(raised) or type(raised).__module__.startswith("torch._dynamo"):
            expect_python(realised.model, case=self.case.name)  # the words of these say little of the check
        device = self.where.device.torch_device
        try:
            with runs_under(self.case, self.where):
                run_step(self.case, realised.on(device), self.where.region, seed=self.where.seed)
        except AmpFailure:
            run_wide(self.case, realised.on(device), seed=self.where.seed)
            raise
