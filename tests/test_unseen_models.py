"""Models whose operators cannot be recorded: scripts, and models that compile themselves."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, Project

UNSEEN = """
import torch


def test_it(amp):
    case = amp.case(lambda: {build}, lambda: torch.randn(2, 4), lambda m, x: m(x).float().square().mean())
    amp.{check}
"""


@pytest.mark.parametrize("check", ["check_gradients(case)", "check_casts(case)"])
def test_model_that_compiles_itself_is_refused(project: Project, check: str) -> None:
    """Refuse the model in one line: a check cannot record its operators, and dynamo's message would not help."""
    compiled = 'torch.compile(torch.nn.Linear(4, 4), backend="eager")'
    project.write(test_it=UNSEEN.format(build=compiled, check=check))
    result = project.apart(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   *AmpUsageError: case it: the model compiles itself, so that its operators *"])


CHECKS = ("check_gradients(case)", "check_casts(case)", "check_memory(case)", "check_scaler(case)", "trace(case)")


@pytest.mark.parametrize("check", CHECKS)
def test_scripted_model_is_refused(project: Project, check: str) -> None:
    project.write(test_it=UNSEEN.format(build="torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(2, 4))", check=check))
    result = project.here(*ON_CPU, "-Wignore::DeprecationWarning")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   *AmpUsageError: case it: the model is a script, whose operators cannot be recorded; *"]
    )
