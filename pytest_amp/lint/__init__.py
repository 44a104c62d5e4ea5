"""Findings about a user's own model and loop under mixed precision.

The linter reads what a recorded step did and returns findings; ``amp.check`` decides which of them fail a test.
"""

from pytest_amp.lint.finding import Finding, Severity
from pytest_amp.lint.linter import findings_of_case, findings_of_evaluation, findings_of_training

__all__ = ["Finding", "Severity", "findings_of_case", "findings_of_evaluation", "findings_of_training"]
