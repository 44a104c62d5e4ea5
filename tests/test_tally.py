"""Counts of requested tests, of those that ran, and of gone observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_amp.record import Kind, Observation
from pytest_amp.run.tally import Tally

TEST = ("cpu-bf16", "rules", "test_rules::test_rule")


def report(name: str, outcome: str = "passed", when: str = "call", longrepr: object = None) -> pytest.TestReport:
    location = ("test_rules.py", 1, name)
    return pytest.TestReport(name, location, {}, outcome, longrepr, when)  # type: ignore[arg-type]


def data(*observed: Observation, missing: bool = False) -> dict[str, object]:
    test = dict(zip(("target", "family", "test"), TEST, strict=True))
    carried = {"key": "rules/cpu/bf16/test_it::test_it", "selected": 3}
    return {"test": {**test, "allowed_missing": missing}, "observations": [o.to_json() for o in observed], **carried}


def observed(name: str) -> Observation:
    return Observation(f"rules/cpu/bf16/{name}", Kind.RULE, "fp32", test=TEST[2])


def test_gone_observations_need_all_parameters_to_have_passed() -> None:
    tally = Tally()
    before = [observed("a"), observed("b")]
    tally.add(report("[a]"), data())
    tally.add(report("[a]", when="teardown"), data(observed("a")))
    assert tally.gone(before, {TEST: 2}) == []
    assert tally.gone(before, {}) == []  # their number is unknown
    tally.add(report("[c]"), data())
    assert tally.gone(before, {TEST: 2}) == [before[1]]
    other = Observation("rules/cpu/fp16/b", Kind.RULE, "fp32", test=TEST[2])
    assert tally.gone([other], {TEST: 2}) == []


def test_repeated_test_is_counted_once() -> None:
    tally = Tally()
    tally.add(report("[a]"), data())
    tally.add(report("[a]"), data())
    assert tally.gone([observed("b")], {TEST: 2}) == []


def test_allowed_missing_requirement_is_excused() -> None:
    tally = Tally()
    skip = ("file", 1, "Skipped: missing")
    tally.add(report("[a]", "skipped", "setup", skip), data(missing=True))
    assert tally.unexecuted({}) == []


def test_family_without_an_outcome_is_reported() -> None:
    tally = Tally()
    assert tally.unexecuted({("cpu-bf16", "rules"): 3}) == [
        "rules on cpu-bf16: 3 selected, not one executed: the run stopped before"
    ]


def test_test_with_a_failed_part_did_not_run_whole() -> None:
    """Require every part to pass: a passed subtest, or a call before a failed teardown, is not enough."""
    tally = Tally()
    tally.add(report("[a]"), data())
    assert tally.whole({TEST: 1}) == {TEST}
    tally.add(report("[a]", "failed"), data())
    assert (tally.whole({TEST: 1}), tally.gone([observed("b")], {TEST: 1})) == (set(), [])


def test_ended_tests_are_counted_once_each() -> None:
    tally = Tally()
    for outcome in ("rerun", "passed", "passed"):  # run again, and a subtest
        tally.add(report("[a]", outcome), data())
    place = TEST[:2]
    assert tally.unreported({place: 1}) == []
    (line,) = tally.unreported({place: 2})
    assert line.startswith("rules on cpu-bf16: 2 selected, 1 came to an end: ")
    again = Tally()
    again.add(report("[a]"), data())
    again.add(report("[b]", "rerun"), data())
    assert len(again.unreported({place: 2})) == 1


def test_different_values_of_two_workers_clash() -> None:
    """Report the clash, since every worker runs every test with --dist=each."""
    tally = Tally()
    for worker, value in (("gw0", "fp32"), ("gw1", "fp32"), ("gw2", "bf16")):
        assert tally.clashes() == []
        sent = report("[a]", when="teardown")
        sent.worker_id = worker  # type: ignore[attr-defined]  # as pytest-xdist does
        tally.add(sent, data(replace(observed("x"), value=value)))
    assert tally.clashes() == [
        "rules/cpu/bf16/x: observed by [a] in gw1 and by [a] in gw2; expected a name of its own in each"
    ]


def test_clashes_are_by_test_and_not_by_phase() -> None:
    tally = Tally()
    tally.add(report("[a]", when="teardown"), data(observed("x")))
    tally.add(report("[a]", when="teardown"), data(observed("x")))
    assert tally.clashes() == []
    tally.add(report("[b]", when="teardown"), data(observed("x")) | {"key": "rules/cpu/bf16/test_it::test_it[b]"})
    assert tally.clashes() == ["rules/cpu/bf16/x: observed by [a] and by [b]; expected a name of its own in each"]


def test_observation_of_a_test_with_a_failed_teardown_is_not_accepted() -> None:
    """Use a test with a green call and a failed teardown."""
    tally = Tally()
    for name in ("[a]", "[b]"):
        tally.add(report(name), data())
    tally.add(report("[a]", when="teardown"), data(observed("a")))
    tally.add(report("[b]", "failed", "teardown", "AmpFailure: the test left state"), data(observed("b")))
    assert tally.accepted() == [observed("a")]
