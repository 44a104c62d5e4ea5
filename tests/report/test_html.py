"""The HTML page: everything in one file, no text can escape its element, and a plot if there is data."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import Failure, Kind, Observation, Record, Value, difference, trend, write_record
from pytest_amp.report import differences as reports
from pytest_amp.report.cells import FINGERPRINT
from pytest_amp.report.html import of_difference, of_trend
from pytest_amp.report.html.plots import plots
from pytest_amp.report.html.svg import Scale
from tests.project import ON_CPU, ROOT, Project, refused
from tests.report.records import HOSTILE, record


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the text of each script."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.opened: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.opened or self.opened.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if self.opened and self.opened[-1] == "script":
            self.scripts.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return of_difference(difference(record("2.13.0"), record("2.14.1", seed=1)))


def test_page_needs_no_other_file_and_no_network(page: str) -> None:
    elements = Elements(page)
    assert elements.unbalanced == []
    assert elements.opened == []
    policy = next(attrs for tag, attrs in elements.found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'; ")
    targets = [value for _, attrs in elements.found for name, value in attrs.items() if name in ("src", "href")]
    assert targets == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page


def test_hostile_text_is_escaped(page: str) -> None:
    """Use a key, a value, a failure and a command that would end a script element or begin one."""
    assert HOSTILE not in page
    assert "<script>alert" not in page
    elements = Elements(page)
    assert len([tag for tag, _ in elements.found if tag == "script"]) == 3
    rows = json.loads(elements.scripts[0])["rows"]
    assert any(HOSTILE in str(row) for row in rows)


def test_differences_are_shown_without_javascript(page: str) -> None:
    before_script = page.partition('<section id="all">')[0]
    for words in ("tests that fail now (1)", "worse (", "changed (", "gone (", "better (1)"):
        assert words in before_script
    titles = re.findall("<h2>(.*?)</h2>", before_script)
    assert titles == [
        "What changed, by family",
        "Errors closest to what is allowed",
        "Speedups over float32",
        "GradScaler&#39;s scale over iterations",
    ]
    assert before_script.count("<svg ") == 4


def test_page_without_differences_has_no_table() -> None:
    text = of_difference(difference(record("2.13.0"), record("2.13.0")))
    assert "the same" in text
    assert '<section id="all">' not in text
    assert Elements(text).unbalanced == []


def test_page_of_a_history_lists_its_records() -> None:
    text = of_trend(trend([record("2.12.1"), record("2.13.0"), record("2.14.1", seed=1)]))
    assert "torch 2.12.1 (2026-11-28) → torch 2.14.1 (2026-11-28), 3 records" in text
    assert "what moved, in each record (" in text
    assert Elements(text).unbalanced == []


def test_plots_accept_nonfinite_and_extreme_numbers() -> None:
    values: list[Value] = [
        0.0,
        -1.0,
        1e308,
        10**400,
        float("nan"),
        "inf",
        None,
        True,
        [],
        ["0"],
        ["1", "x"],
        ["nan", "1"],
        [1e-300] * 3,
    ]
    observations = [Observation(f"a/cpu/bf16/{n}/scale", Kind.STATE, value) for n, value in enumerate(values)]
    observations += [
        Observation(f"a/cpu/bf16/e{n}", Kind.ERROR, value, allowed=1e-300) for n, value in enumerate(values)
    ]
    observations += [
        Observation(f"a/cpu/bf16/r{n}", Kind.RATIO, value, interval=(0.0, float("inf")))
        for n, value in enumerate(values)
    ]
    drawn = " ".join(plot.svg for plot in plots(observations, [], []))
    places = re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|width|height)="([^"]*)"', drawn)
    assert len(places) > 50
    assert all(-1e4 < float(place) < 1e4 for place in places)
    assert "nan" not in "".join(re.findall(r' d="([^"]*)"', drawn))
    text = of_difference(difference(Record(()), Record(tuple(observations))))
    assert Elements(text).unbalanced == []


def test_plot_distinguishes_a_known_fault_from_a_failure() -> None:
    """Both exceed the allowed error; the record lists the failed test and its target."""
    faults = [Observation(f"a/cpu/{dtype}/x", Kind.ERROR, 3.0, allowed=1.0, test="t::t") for dtype in ("bf16", "fp16")]
    (plot,) = plots(faults, [], [Failure("a/cpu/fp16/t::t[x]", "AmpFailure: no")])
    bars = re.findall(r'class="(v-[a-z]+)"', plot.svg)
    assert bars == ["v-inconclusive", "v-failed"]
    assert re.findall(r">(expected|300%)<", plot.svg) == ["expected", "300%"]


def test_page_with_fingerprints_explains_their_notation(page: str) -> None:
    values = ("fp32 low | =", "fp32 low | low low")
    records = [Record((Observation("fingerprint/cpu/bf16/mm", Kind.DTYPE, value),)) for value in values]
    actual = difference(*records)
    for text in (of_difference(actual), reports.as_text(actual), reports.as_markdown(actual)):
        assert html.unescape(text).replace("\\|", "|").count(FINGERPRINT) == 1
    assert FINGERPRINT not in html.unescape(page)


def test_ticks_are_round_numbers() -> None:
    assert Scale(0.8, 3.2, 0, 100).ticks(8) == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert Scale(0, 1, 0, 100).ticks(4) == [0.0, 0.5, 1.0]
    assert Scale(1, 1, 0, 100).ticks() == [1]
    assert Scale(0, 10, 0, 100)(20) == 100


def test_diff_command_prints_html_or_reports_missing_jinja2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, seed in zip(paths, (0, 1), strict=True):
        write_record(record("2.13.0", seed=seed), path, replace=False)
    assert cli.main(["diff", *map(str, paths), "--format=html"]) == 1
    assert capsys.readouterr().out.startswith("<!doctype html>\n")
    assert cli.main(["diff", *map(str, paths), str(paths[1]), "--format=html"]) == 1
    assert capsys.readouterr().out.startswith("<!doctype html>\n")
    for name in [name for name in sys.modules if name.startswith("pytest_amp.report.html")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["diff", *map(str, paths), "--format=html"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "pytest-amp: --format=html: jinja2 is not installed; pip install 'pytest-amp[html]'\n"


def test_other_formats_import_no_jinja2() -> None:
    program = "import sys\nfrom pytest_amp import cli\nprint({'jinja2', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


TEST = """
def test_green(amp):
    amp.observe('stays', 1, kind='count')
    amp.record('tokens', {tokens}, unit='1/s', better='higher')


def test_red(amp):
    amp.observe('rule <x>', {rule!r}, kind='rule')
    assert {rule!r} == 'fp32', 'not <the> rule'
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_html_report_of_a_run_has_changes_and_failures(project: Project, workers: str) -> None:
    project.write(test_it=TEST.format(tokens=100, rule="fp32"))
    assert project.here(*ON_CPU, "--amp-record=old.json", "--amp-report=html:page.html").ret == 0
    text = (project.path / "page.html").read_text(encoding="utf-8")
    assert "<title>pytest-amp: green on torch " in text
    project.write(test_it=TEST.format(tokens=200, rule="none"))
    arguments = ("--amp-baseline=old.json", "--amp-report=html:page.html", "-n", workers)
    assert project.apart(*ON_CPU, *arguments).ret == 1
    text = (project.path / "page.html").read_text(encoding="utf-8")
    assert "<title>pytest-amp: red on torch " in text
    assert "tests that failed (1)" in text
    assert re.findall(r"<b>(\d+)</b> ([a-z ]+)</li>", text) == [("1", "changed"), ("1", "better"), ("1", "the same")]
    rows = json.loads(next(script for script in Elements(text).scripts if script.startswith('{"rows"')))["rows"]
    assert [row[0] for row in rows] == ["changed", "improved", "pass"]
    assert "project/cpu/bf16/rule &lt;x&gt;" in text
    assert Elements(text).unbalanced == []


def test_html_report_without_jinja2_is_refused_before_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    line = refused(project.here("--amp-report=html:page.html"))
    assert line.endswith(": html needs jinja2, which is not installed: pip install 'pytest-amp[html]'")
