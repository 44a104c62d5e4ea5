"""Failures grouped by cause: unexplained causes first, each once, with a command."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from pytest_amp.data_files.releases import installed_torch, release_of
from pytest_amp.record import Kind, Observation, Record, Verdict, difference
from pytest_amp.report import differences as reports
from pytest_amp.report import newer, reasons
from pytest_amp.report.commands import bisect_command
from pytest_amp.report.inline import linked
from pytest_amp.report.reasons import ReleaseChange
from tests.project import Project, red, summary

PLACES = ("--amp-device=cpu,fake:cuda", "--amp-dtype=bf16,fp16")
TESTS = """
import pytest
from pytest_amp.failure import AmpFailure

pytestmark = pytest.mark.amp(fake=True)


def test_softmax(amp):
    raise AmpFailure(
        f"softmax under autocast({amp.device.type}, {amp.precision.dtype_name}) is low on {amp.target.id}",
        before="float32",
        now="low",
        likely="it left the list",
    )


@pytest.mark.amp(devices=("cpu",), xfail={"cpu": "pytorch/pytorch#164069"})
def test_mended(amp):
    pass


def test_own(amp):
    assert amp.device.type == "nothing"
"""
COMMAND = (
    f"pytest-amp bisect 2.1.0 {Version(installed_torch()).public} "
    "'test_it.py::test_softmax[cpu-bf16]' --device=cpu --dtype=bf16"
)
COUNT = "4 tests on cpu, fake-cuda in bf16, fp16"


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the data that of torch 2.1: the last release that it knows."""
    monkeypatch.setattr(newer, "last_known", lambda: "2.1")
    torch = Version(installed_torch())
    return f"torch {torch.major}.{torch.minor} is newer than what this version knows (2.1)"


def run(project: Project, *arguments: str) -> pytest.RunResult:
    project.write(test_it=TESTS)
    return project.here(*PLACES, "--amp-report=md:page.md", *arguments)


def test_newer_torch_is_reported_in_every_format(project: Project, older: str) -> None:
    pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-amp[html]'")
    result = run(project, "--amp-report=html:page.html")
    (remark,) = (line for line in summary(result) if line.startswith("torch"))
    assert remark.removeprefix("torch").strip().startswith(older)
    result.stdout.fnmatch_lines([f"  likely    it left the list; {older}"])
    for name in ("page.md", "page.html"):
        assert (project.path / name).read_text(encoding="utf-8").count(f"{older}: what is unexplained here") == 1


def test_causes_are_ordered_and_have_commands(project: Project, older: str) -> None:
    del older
    lines = summary(run(project))
    causes = [line.removeprefix("cause").strip() for line in lines if line.startswith("cause")]
    # A failure by its own assertion is a different cause on each device, since its text differs.
    assert [line.partition(":")[0] for line in causes] == ["unexplained"] * (len(causes) - 1) + ["fixed upstream"]
    assert causes[0] == f"unexplained: {COUNT}: softmax under autocast(cpu, bfloat16) is low on cpu-bf16"
    assert causes[-1].startswith("fixed upstream: 2 tests on cpu in bf16, fp16: pytorch/pytorch#164069 passes on ")
    assert lines[lines.index(f"cause     {causes[0]}") + 1].strip() == COMMAND


def test_failure_of_a_cause_is_shown_once(project: Project) -> None:
    """Check that JUnit and -vv have each failure in full, and the terminal a short form of all but the first."""
    result = run(project, "--junitxml=junit.xml")
    shown = [line for line in result.stdout.lines if line.startswith("  before    float32")]
    assert len(shown) == 1
    as_first = [line for line in result.stdout.lines if line == "  same as   test_it.py::test_softmax[cpu-bf16]"]
    assert len(as_first) == 3
    assert (project.path / "junit.xml").read_text(encoding="utf-8").count('<failure message="AmpFailure: softmax') == 4
    assert (
        len([line for line in run(project, "-vv", "-rN").stdout.lines if line.startswith("  before    float32")]) == 4
    )


KNOWN = """
from pytest_amp.failure import AmpFailure


def test_it(amp):
    amp.observe("softmax", "low", kind="dtype")
    raise AmpFailure("softmax is another", label_before="manual", before="float32", likely="who knows")
"""


def test_known_reason_replaces_the_likely_cause(project: Project, older: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = release_of(installed_torch())
    change = ReleaseChange(release, ("project/*/*/softmax",), "softmax is low on purpose", "a/b#7")
    monkeypatch.setattr(reasons, "load_changes", lambda: (change,))
    project.write(test_it=KNOWN)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-report=md:page.md")
    reason = f"torch {release[0]}.{release[1]}: softmax is low on purpose (a/b#7)"
    result.stdout.fnmatch_lines([f"  likely    {reason}; {older}", "cause     explained: 1 test on cpu in bf16: *"])
    assert "who knows" not in result.stdout.str()
    assert "  - manual: float32" in (project.path / "page.md").read_text(encoding="utf-8")


def test_mended_fault_is_not_counted_as_a_failure(project: Project) -> None:
    result = run(project, "-k", "mended")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["ran       cpu-bf16  project 1 fixed upstream", "*2 fixed upstream in *"])
    assert "FAILURES" not in result.stdout.str()
    page = (project.path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("### pytest-amp: red on torch")
    assert "<summary>failed" not in page


def test_markdown_page_lists_a_cause_once_with_its_message(project: Project, older: str) -> None:
    run(project)
    page = (project.path / "page.md").read_text(encoding="utf-8")
    headings = re.findall(r"^\*\*(.*)\*\*$", page, re.MULTILINE)
    assert headings[-1] == "fixed upstream (1 cause, 2 tests)"
    assert headings[0].startswith("unexplained (")
    start = page.index("- **softmax under autocast")
    assert page[start:].splitlines()[:6] == [
        f"- **softmax under autocast(cpu, bfloat16) is low on cpu-bf16**: {COUNT}",
        "  - before: float32",
        "  - now: low",
        f"  - likely: it left the list; {older}",
        "  - rerun: `pytest 'test_it.py::test_softmax[cpu-bf16]' --amp-device=cpu --amp-dtype=bf16`",
        f"  - bisect: `{COMMAND}`",
    ]
    assert "[pytorch/pytorch#164069](https://github.com/pytorch/pytorch/issues/164069)" in page
    assert page.count("softmax under autocast") == 5  # the cause, and the folded list of tests


def test_html_page_has_a_card_for_each_cause(project: Project) -> None:
    pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-amp[html]'")
    run(project, "--amp-report=html:page.html")
    page = (project.path / "page.html").read_text(encoding="utf-8")
    assert page.index("<h2>unexplained (") < page.index("<h2>fixed upstream (1)</h2>") < page.index("tests that failed")
    assert '<a href="https://github.com/pytorch/pytorch/issues/164069">pytorch/pytorch#164069</a>' in page
    assert "<dt>rerun</dt><dd><code>pytest &#39;test_it.py::test_softmax[cpu-bf16]&#39; --amp-device" in page


def test_known_release_has_no_remark(project: Project) -> None:
    result = run(project)
    assert red(result) == []
    assert not any(line.startswith("torch") for line in summary(result))
    assert "is newer than what" not in (project.path / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "command"),
    [
        ("2.14.0", "2.15.0+cu130", "pytest-amp bisect 2.14.0 2.15.0 a.py::t --device=fake:cuda --dtype=fp16"),
        ("2.15.0", "2.15.0+cpu", None),
        ("2.15.0", "2.14.0", None),
        ("not installed", "2.14.0", None),
    ],
)
def test_bisect_command_names_releases_and_target(old: str, new: str, command: str | None) -> None:
    assert bisect_command("a.py::t", "fake-cuda-fp16", None, old, new) == command


def test_bisect_command_of_installed_suites_has_pyargs() -> None:
    rerun = "pytest --pyargs 'pytest_amp.suites.rules.test_x::test_y[cpu-bf16-mm]' --amp-device=cpu --amp-dtype=bf16"
    assert bisect_command("x", "cpu-bf16", rerun, "2.14.0", "2.15.0") == (
        "pytest-amp bisect 2.14.0 2.15.0 'pytest_amp.suites.rules.test_x::test_y[cpu-bf16-mm]' "
        "--pytest-args=--pyargs --device=cpu --dtype=bf16"
    )


@pytest.mark.parametrize("version", ["2.14.1", "2.14.9+cu130", "2.6.0", "unknown", None])
def test_known_or_missing_release_is_not_newer(version: object) -> None:
    assert newer.newer_than_known(version) is None


def test_newer_release_is_named_beside_the_last_known() -> None:
    last = Version(newer.last_known())
    for version in (f"{last.major}.{last.minor + 1}.0+cu130", f"{last.major}.{last.minor + 1}.0.dev20270101"):
        assert newer.newer_than_known(version) == (
            f"torch {last.major}.{last.minor + 1} is newer than what this version knows ({last})"
        )


def test_difference_lists_unexplained_changes_first() -> None:
    """cholesky left torch 2.14, as the data knows; it sorts before softmax, which has no explanation."""
    names = ("aten::cholesky", "aten::softmax.int")
    test = "test_it::test_it"
    ran = {"cpu-bf16 rules": (test,)}
    old = Record(
        (
            *(Observation(f"rules/cpu/bf16/{name}", Kind.RULE, "fp32", test=test) for name in names),
            Observation("rules/cpu/bf16/aten::mm", Kind.RULE, "lower", test=test),
        ),
        {"torch": "2.13.0"},
        ran=ran,
    )
    new = Record(old.observations[2:], {"torch": "2.14.1"}, ran=ran)
    actual = difference(old, new)
    assert [row.name for row in actual.of(Verdict.GONE)] == [*names]
    command = "find the release: pytest-amp bisect 2.13.0 2.14.1 -k test_it --device=cpu --dtype=bf16"
    for text in (reports.as_text(actual), reports.as_markdown(actual).replace("`", "")):
        assert text.count(command) == 1
        assert text.index("softmax.int") < text.index("because") < text.index("cholesky")
    newest = Record(new.observations, {"torch": "9.9.0"}, ran=ran)
    assert "torch 9.9 is newer than what this version knows" in reports.as_text(difference(old, newest))


@pytest.mark.parametrize(
    ("text", "link"),
    [
        (
            "see pytorch/pytorch#191142, please",
            "see [pytorch/pytorch#191142](https://github.com/pytorch/pytorch/issues/191142), please",
        ),
        ("a/b/c#1", "a/b/c#1"),
        ("#1", "#1"),
    ],
)
def test_issues_are_links(text: str, link: str) -> None:
    assert linked(text) == link
