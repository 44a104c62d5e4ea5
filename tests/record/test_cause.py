"""Likely causes of a difference from a baseline are the differences between the two runs."""

from __future__ import annotations

from pytest_amp.record.cause import likely_cause
from pytest_amp.record.observation import Value

OLD: dict[str, Value] = {
    "torch": "2.13.0",
    "torch_git": "a",
    "devices": {"cpu": {"machine": "x86_64"}, "cuda": {"driver": "570"}},
}


def test_different_torch_is_the_likely_cause() -> None:
    assert likely_cause(OLD, {**OLD, "torch": "2.14.0"}, "cpu") == (
        "torch: 2.13.0 before, 2.14.0 now, or the project's own code"
    )


def test_different_driver_is_named_for_its_device() -> None:
    new: dict[str, Value] = {**OLD, "devices": {"cpu": {"machine": "x86_64"}, "cuda": {"driver": "580"}}}
    assert likely_cause(OLD, new, "cuda").startswith("cuda's driver: 570 before, 580 now")
    assert "driver" not in likely_cause(OLD, new, "cpu")


def test_project_is_the_likely_cause_if_nothing_differs() -> None:
    assert likely_cause(OLD, {**OLD}, "cpu").startswith("the project's own code or its libraries")
    assert likely_cause({}, {}, "cpu").startswith("the project's own code or its libraries")
