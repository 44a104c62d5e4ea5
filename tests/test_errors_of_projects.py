"""Errors of a project's code within a check: one failure, in the usual parts, with the project's line."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, Project
from tests.test_usage_errors import HEAD

RAISING = (
    HEAD
    + """

def wrong(iteration):
    raise {error}
"""
)


@pytest.mark.parametrize(
    "check",
    [
        "check_scaler(case(amp), train=wrong)",
        "check_training(case(amp), steps=2, train=wrong)",
        "scaler_trace(case(amp), steps=2, train=wrong)",
        "check_scaler(case(amp), optimizer=wrong)",
        "check_training(case(amp), steps=2, optimizer=wrong)",
    ],
)
@pytest.mark.parametrize("error", ["RuntimeError('of it')", "KeyError('of it')"])
def test_error_of_a_training_step_or_optimizer_is_reported_with_its_line(
    project: Project, check: str, error: str
) -> None:
    """Name the line of the project's function, although the check calls it through its own step."""
    project.write(test_it=RAISING.format(line=f"amp.{check}", error=error))
    result = project.here(*ON_CPU)
    result.assert_outcomes(failed=1)
    kind = error.partition("(")[0]
    result.stdout.fnmatch_lines(
        [
            f"AmpFailure: it: code that the check calls raised {kind}",
            "  expected *a step of the case alone does, in float32 and under autocast(cpu, bfloat16)",
            f"  now *{kind} (test_it.py:14): *of it*",
            "  likely *the training step, the optimizer or a hook *",
            "  rerun *",
        ]
    )
    assert not [text for text in result.outlines if text.startswith("E  ")]


def test_error_of_a_traced_function_is_reported_with_its_line(project: Project) -> None:
    project.write(test_it=RAISING.format(line="amp.scaler_trace(wrong, steps=2)", error="IndexError('of it')"))
    result = project.here(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["AmpFailure: wrong raised IndexError", "  now *IndexError (test_it.py:14): of it, *"])


EVERY_CHECK = """
import pytest
import torch

CHECKS = {
    "gradients": lambda amp, case: amp.check_gradients(case),
    "compiled": lambda amp, case: amp.check_compiled(case, backend="eager"),
    "training": lambda amp, case: amp.check_training(case, steps=2),
    "scaler": lambda amp, case: amp.check_scaler(case),
    "traced scaler": lambda amp, case: amp.scaler_trace(case, steps=2),
    "casts": lambda amp, case: amp.check_casts(case),
    "memory": lambda amp, case: amp.check_memory(case),
    "dtypes": lambda amp, case: amp.check_dtypes(case, {"": amp.dtype}),
    "trace": lambda amp, case: amp.trace(case),
}


class OwnError(Exception):
    pass


def steep():  # some steps move its loss
    layer = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(layer.weight, 3.0)
    return layer


@pytest.mark.parametrize("error", [ValueError, KeyError, OwnError, StopIteration, pytest.skip.Exception])
@pytest.mark.parametrize("check", CHECKS)
def test_it(amp, check, error):
    def loss(model, x):
        if WHEN:
            raise error("of the model")
        return model(x).float().square().mean()

    CHECKS[check](amp, amp.case(steep, lambda: torch.ones(2, 4), loss))
"""


@pytest.mark.parametrize("where", ["in float32, without autocast", "under autocast(cpu, bfloat16)"])
def test_error_of_a_model_is_reported_by_every_check(project: Project, where: str) -> None:
    """Include errors other than RuntimeError; a skip inside a check skips the test."""
    when = "True" if "float32" in where else "torch.is_autocast_enabled('cpu')"
    project.write(test_it=EVERY_CHECK.replace("WHEN", when))
    # Apart, since torch's compiler cannot be imported twice; with the narrow band two steps are enough training.
    result = project.apart(*ON_CPU, "--amp-tolerance-scale=1e-3")
    result.assert_outcomes(failed=36, skipped=9)
    messages = [text for text in result.outlines if text.startswith("AmpFailure: ")]
    assert len(messages) == 36
    assert all(f"does not run {where}" in text for text in messages)
    lines = [text for text in result.outlines if "of the model, on torch" in text or "'of the model', on torch" in text]
    assert len(lines) == 36
    assert all("Error (test_it.py:3" in text or "StopIteration (test_it.py:3" in text for text in lines)
    assert not [text for text in result.outlines if text.startswith("E  ")]
