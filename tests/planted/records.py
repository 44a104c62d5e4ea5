"""Planted defects of records: their keys are not those of today."""

from __future__ import annotations

from tests.planted.table import defect, swap


@defect(
    "Records of earlier versions are read under the keys that they have: what moved is gone, and new, and never worse",
    caught_by="tests/record/test_renamed.py::test_regression_under_an_earlier_key_is_red",
)
def earlier_keys_are_kept() -> None:
    swap("pytest_amp.record.file", "_with_present_keys", lambda record: record)
