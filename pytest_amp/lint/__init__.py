"""Findings about a user's own model and loop under mixed precision.

The linter reads what a recorded step did and returns findings; ``amp.check`` decides which of them fail a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.cases import Case, MakeOptimizer
from pytest_amp.lint.finding import Finding, Severity
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.training.trajectory import TrainingStep

__all__ = ["Finding", "Severity", "findings_of_case", "findings_of_evaluation", "findings_of_training"]


def findings_of_case(case: Case, conditions: Conditions) -> tuple[Finding, ...]:  # noqa: ARG001  # a stub
    """Return the findings of one forward and backward pass of ``case`` in mixed precision."""
    return ()


def findings_of_training(
    case: Case,  # noqa: ARG001  # a stub
    conditions: Conditions,  # noqa: ARG001
    train: TrainingStep,  # noqa: ARG001
    *,
    optimizer: MakeOptimizer | None = None,  # noqa: ARG001
    steps: int = 3,  # noqa: ARG001
) -> tuple[Finding, ...]:
    """Return the findings of a few iterations of a user's training step."""
    return ()


def findings_of_evaluation(
    case: Case,  # noqa: ARG001  # a stub
    conditions: Conditions,  # noqa: ARG001
    evaluate: Callable[[Any], Any],  # noqa: ARG001
    *,
    trained_low: bool,  # noqa: ARG001
) -> tuple[Finding, ...]:
    """Return the findings of a user's evaluation."""
    return ()
