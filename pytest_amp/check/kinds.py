"""Kinds of entries of a report, from the linter and from the checks; each has a page in docs/findings/."""

from __future__ import annotations

from pytest_amp.lint.kinds import KINDS as FINDINGS

CHECKS = frozenset(
    {
        "check-casts",
        "check-compiled",
        "check-dtypes",
        "check-gradients",
        "check-harm",
        "check-linter",
        "check-memory",
        "check-scaler",
        "check-training",
        "expected-finding-gone",
        "harmful-cast",
        "low-branch",
        "training-cannot-tell",
    }
)
KINDS = CHECKS | FINDINGS.keys()
