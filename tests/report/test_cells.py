"""Rows of a report: observations that differ only in their target share one."""

from __future__ import annotations

import pytest

from pytest_amp.record import Kind, Observation, Verdict
from pytest_amp.report.cells import Row, by_reason, together


def changed(place: str, now: str = "fp32") -> Observation:
    return Observation(f"rules/{place}/mm/out", Kind.RULE, now, verdict=Verdict.CHANGED, baseline="low")


@pytest.mark.parametrize(
    ("places", "key"),
    [
        (["cpu/bf16"], "rules/cpu/bf16/mm/out"),
        (["cpu/bf16", "cpu/fp16"], "rules/cpu/{bf16, fp16}/mm/out"),
        (["cpu/fp16", "fake-cuda/fp16"], "rules/{cpu, fake-cuda}/fp16/mm/out"),
        (["cpu/bf16", "cpu/fp16", "cuda/bf16", "cuda/fp16"], "rules/{cpu, cuda}/{bf16, fp16}/mm/out"),
        (["cpu/bf16", "cuda/fp16"], "rules/{cpu/bf16, cuda/fp16}/mm/out"),
        (["cpu/bf16", "cpu/fp16", "cuda/fp16"], "rules/{cpu/bf16, cpu/fp16, cuda/fp16}/mm/out"),
    ],
)
def test_observations_of_several_targets_share_a_row(places: list[str], key: str) -> None:
    assert together(Verdict.CHANGED, map(changed, places)) == [Row(key, "low", "fp32")]


def test_times_have_two_digits() -> None:
    for now, text in ((37_412.0, "37000"), (3.14, "3.1"), (0.0123, "0.012"), (2e9, "2e+09")):
        result = Observation("a/cpu/bf16/x", Kind.ERROR, now, verdict=Verdict.REGRESSED, baseline=1.0)
        (row,) = together(Verdict.REGRESSED, [result])
        assert row.now == f"{now:.4g} ({text} times)"


def test_rows_differ_by_value_and_groups_by_reason() -> None:
    group = [changed("cpu/bf16"), changed("cpu/fp16", "none"), changed("cuda/bf16"), changed("cuda/fp16")]
    assert together(Verdict.CHANGED, group) == [
        Row("rules/{cpu/bf16, cuda/bf16, cuda/fp16}/mm/out", "low", "fp32"),
        Row("rules/cpu/fp16/mm/out", "low", "none"),
    ]
    assert by_reason(group, {group[0].key: "known"}) == {"": group[1:], "known": group[:1]}
    assert by_reason(group[:1], {group[0].key: "known"}) == {"known": group[:1]}


def test_tests_of_one_cause_share_a_row() -> None:
    """Join tests whose messages differ in the device alone, but not facts with different values."""
    names = ("test_x::test_rule[mm]", "test_x::test_rule[bmm]")
    failed = [
        Observation(
            f"rules/{device}/bf16/{name}", Kind.STATE, f"fails: AmpFailure: low on {device}", verdict=Verdict.FAILED
        )
        for device in ("cpu", "fake-cuda")
        for name in names
    ]
    (row,) = together(Verdict.FAILED, failed)
    assert row.key == "rules/{cpu, fake-cuda}/bf16/test_x::test_rule[mm] and 1 more"
    assert row.now == "fails: AmpFailure: low on cpu"
    facts = [
        Observation(f"rules/cpu/{dtype}/x", Kind.DTYPE, now, baseline="float32", verdict=Verdict.CHANGED)
        for dtype, now in (("bf16", "bfloat16"), ("fp16", "float16"))
    ]
    assert len(together(Verdict.CHANGED, facts)) == 2
