"""One call that checks all of a user's model: takes a case and a loop, returns a report or raises one failure."""

from pytest_amp.check.collect import Collector
from pytest_amp.check.conclude import conclude
from pytest_amp.check.expected import expect_expected
from pytest_amp.check.plan import Plan
from pytest_amp.check.report import Report

__all__ = ["Collector", "Plan", "Report", "conclude", "expect_expected"]
