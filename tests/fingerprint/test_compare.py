"""Differences between fingerprints, and deviations that count as equal."""

from __future__ import annotations

import pytest

from pytest_amp.fingerprint.compare import NOT_HERE, Change, Difference, differences
from pytest_amp.fingerprint.dtypes import Calls, joined, matches

LOW, SAME, NONE = "fp32 low | low low", "fp32 low | =", "not: needs a real device"


def test_calls_are_abbreviated() -> None:
    assert str(Calls("fp32", "low", "fp32", "low")) == SAME
    assert str(Calls("fp32", "error", "low,fp32", "banned")) == "fp32 error | low,fp32 banned"
    assert joined([LOW, SAME, LOW]) == f"{SAME} x1; {LOW} x2"
    assert joined([LOW, LOW]) == LOW


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (SAME, "fp32 low | fp32 low", True),  # a different notation, which never occurs
        (SAME, LOW, False),
        (f"{SAME}; {LOW}", LOW, False),
        ("fp32 ? | =", SAME, True),
        ("fp32 ? | low low", LOW, True),
        ("fp32 ? | low low", SAME, False),
        ("fp32 ? | =; fp32 low | =", SAME, True),
        ("fp32 ? | =", "fp32,int64 low,int64 | =", False),
        (f"{SAME}; lost", SAME, False),
        ("fp32 ? | =; lost", SAME, False),
        (NONE, "fp32 ? | =", False),
        (f"{SAME} x16; {LOW} x8", f"{SAME} x16; {LOW} x8", True),
        (f"{SAME} x16; {LOW} x8", f"{SAME}; {LOW}", True),  # of a release with uncounted samples
        (f"{SAME} x16; {LOW} x8", f"{SAME} x10; {LOW} x14", False),
        (f"fp32 ? | = x12; {SAME} x12", SAME, True),
        (f"fp32 ? | low low x4; {SAME} x2; {LOW} x2", f"{SAME} x2; {LOW} x6", True),
        (f"fp32 ? | low low x4; {SAME} x2; {LOW} x2", f"{SAME} x3; {LOW} x5", False),
    ],
)
def test_unknown_dtype_matches_any_other(one: str, other: str, *, same: bool) -> None:
    assert matches(one, other) is same
    assert matches(other, one) is same


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ({LOW}, LOW, None),
        ({LOW}, SAME, Change.CHANGED),
        ({LOW, SAME}, SAME, None),
        ({LOW, None}, None, None),
        ({LOW}, None, Change.GONE),
        (None, LOW, Change.NEW),
        ({NONE}, LOW, Change.OBSERVED),
        ({f"fp32 ? | = x12; {SAME} x12"}, SAME, Change.OBSERVED),  # histogramdd on fakes of 2.15
        ({SAME}, "fp32 ? | =", None),
        ({f"{SAME} x16; {LOW} x8"}, f"{SAME} x10; {LOW} x14", Change.CHANGED),  # linear_cross_entropy of 2.15
        ({f"{SAME} x16; {LOW} x8"}, f"{SAME} x18; {LOW} x8", Change.SAMPLES),
        ({f"{SAME} x16; {LOW} x8"}, f"{SAME} x16; {LOW} x6", Change.SAMPLES),
        ({f"{SAME} x16; {LOW} x8", f"{SAME} x10; {LOW} x14"}, f"{SAME} x10; {LOW} x14", None),
        ({f"{SAME}; {LOW}"}, f"{SAME} x10; {LOW} x14", None),
        ({LOW}, NONE, Change.CHANGED),
        ({NONE}, "not: no sample arguments", None),
        ({NOT_HERE}, LOW, None),
        ({LOW}, NOT_HERE, None),
    ],
)
def test_difference_has_the_kind_of_change(
    before: set[str | None] | None, now: str | None, change: Change | None
) -> None:
    expected = {} if before is None else {"op": before}
    observed = {} if now is None else {"op": now}
    assert [difference.change for difference in differences(expected, observed)] == ([] if change is None else [change])


def test_difference_names_the_entry_before_and_now() -> None:
    (actual,) = differences({"cov": {LOW}, "mm": {LOW}}, {"cov": SAME, "mm": LOW})
    assert actual == Difference("cov", Change.CHANGED, LOW, SAME)
    assert str(actual) == f"cov: {LOW} -> {SAME}"
