"""The report prints as one page, the failure lists everything, worst first, and ``expect=`` accepts by name."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_amp.account import receive
from pytest_amp.check.collect import Collector
from pytest_amp.check.entry import Entry, entry_of_failure, entry_of_finding, order
from pytest_amp.check.expected import expect_expected, split
from pytest_amp.check.failure import SHOWN, CheckFailure, counted
from pytest_amp.check.report import CheckLine, Cost, Report
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.lint import Finding, Severity
from pytest_amp.text.table import as_table, in_bytes


def entry(
    kind: str, module: str = "", *, error: bool = False, site: str = "m.py:3", harm: float | None = None
) -> Entry:
    severity = Severity.ERROR if error else Severity.WARNING
    return Entry(kind=kind, severity=severity, module=module, site=site, message=f"{kind} it is", harm=harm)


ENTRIES = (
    entry("low-norm", "layers.0.norm"),
    entry("low-loss", error=True, site=""),
    entry("low-softmax", "layers.0.attention", error=True, harm=3.0),
    entry("low-log", error=True, harm=float("inf")),
)


def test_entries_are_sorted_worst_first() -> None:
    kinds = [entry.kind for entry in sorted(ENTRIES, key=order)]
    assert kinds == ["low-log", "low-softmax", "low-loss", "low-norm"]


def test_accepted_findings_are_not_counted() -> None:
    parted = split(ENTRIES, expect_expected({"layers.*": ["low-norm", "low-softmax"], "": "low-loss"}))
    assert [entry.kind for entry in parted.accepted] == ["low-norm", "low-loss", "low-softmax"]
    assert [entry.kind for entry in parted.counted] == ["low-log"]


def test_accepted_finding_that_does_not_occur_is_an_error() -> None:
    parted = split(ENTRIES, expect_expected({"layers.0.norm": ["low-norm", "low-angles"]}))
    gone = parted.counted[-1]
    assert (gone.kind, gone.is_error) == ("expected-finding-gone", True)
    assert "expect= accepts low-angles in layers.0.norm, and it does not occur" in gone.message


@pytest.mark.parametrize("value", ["low-norm", ["low-norm"], {"a": []}, {"a": [3]}, {3: "low-norm"}, {"a": ""}])
def test_malformed_expectations_are_refused(value: Any) -> None:
    with pytest.raises(AmpUsageError, match="expected kinds of findings by module"):
        expect_expected(value)


def test_failure_shows_worst_entries_and_abbreviates_the_rest() -> None:
    many = [*sorted(ENTRIES, key=order), *(entry("low-power", f"layers.{number}") for number in range(30))]
    failure = CheckFailure("it: wrong", many, now="on torch", accept="expect={}")
    receive(failure)
    lines = str(failure).splitlines()
    assert lines[0] == "AmpFailure: it: wrong"
    assert lines[1] == "  error     low-log at m.py:3"
    assert "    harm      infinitely as far from float64 as without it" in lines
    assert "    page      pytest-amp finding low-softmax" in lines
    assert sum(line.startswith("    page") for line in lines) == SHOWN
    assert "  and 18 more" in lines
    assert lines[-2:] == ["  now       on torch", "  accept    expect={}"]
    assert len(lines) < 50


def test_entries_retain_details_of_findings_and_failures() -> None:
    finding = Finding(
        kind="low-norm", severity=Severity.WARNING, module="n", site="m.py:9", message="mean is low", advice="Widen"
    )
    assert entry_of_finding(finding).lines()[0] == "warning   low-norm at m.py:9 in n"
    assert "  mend      Widen" in entry_of_finding(finding).lines()
    failure = AmpFailure("it is wrong", now="here", site="m.py:4", likely="that", rerun="pytest")
    receive(failure)
    result = entry_of_failure("linter: train", failure)
    assert (result.kind, result.site, result.parts) == ("check-linter", "m.py:4", (("now", "here"), ("likely", "that")))


def test_harmful_finding_makes_its_linter_line_red() -> None:
    collector = Collector([])
    findings = [
        Finding(kind="low-norm", severity=Severity.WARNING, module="", site=site, message="low", advice="Widen")
        for site in ("m.py:9", "m.py:20")
    ]
    collector.lint("linter", lambda: findings[:1], detail="operators")
    collector.lint("linter: train", lambda: findings[1:], detail="operators")
    assert [line.verdict for line in collector.lines] == ["warning", "warning"]
    first, second = collector.entries
    collector.replace_entries([first.with_harm(3.0, is_harmful=True), second.with_harm(1.0, is_harmful=False)])
    assert [line.verdict for line in collector.lines] == ["red", "warning"]
    assert collector.lines[0].detail == "1 of low-norm"


def test_report_prints_checks_findings_dtypes_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    checks = (CheckLine("gradients", "pass", 0.67, "compared with float64", 1.25),)
    dtypes = {f"layers.{number}": "bfloat16" for number in range(40)} | {"": "float32"}
    report = Report("it", checks, ENTRIES[:1], ENTRIES[1:2], dtypes, Cost(3, 2048, 512, 0.5))
    report.print()
    text = capsys.readouterr().out
    assert "it: 1 warning" in text
    assert "gradients  pass     67%       1.2 s  compared with float64" in text
    assert "accepted by expect=" in text
    assert "and 28 more" in text
    assert "the model" in text
    assert "cost: 3 casts, 2.0 KiB moved by them, 512 B kept for backward (0.50 of float32)" in text
    assert (report.errors, report.warnings) == ((), ENTRIES[:1])


def test_warnings_of_a_green_run_are_one_line() -> None:
    warnings = tuple(entry("low-norm", f"layers.{number}") for number in range(5))
    line = Report("it", (), warnings, (), {}, None).warnings_line("model")
    assert line.startswith("model: 5 warnings: low-norm at m.py:3 in layers.0, ")
    assert "layers.2, 2 more; strict=True" in line


def test_counts_tables_and_byte_sizes_are_formatted() -> None:
    assert counted(ENTRIES) == "3 errors and 1 warning"
    assert counted([]) == "no finding"
    assert as_table(("a", "b"), [("one", "2"), ("1", "")]) == "a    b\none  2\n1"
    assert [in_bytes(count) for count in (5, 2048, 3 * 2**20)] == ["5 B", "2.0 KiB", "3.0 MiB"]
