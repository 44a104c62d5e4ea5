"""Issues of consecutive nights, with a stand-in for gh: one for each cause, closed once the cause is gone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

from tests.workflows.scripts import script

#: Stand-in for gh, as far as the script uses it: its calls and the issues are in files that outlive a night.
GH = """#!{python}
import json
import sys
from pathlib import Path

file = Path({file!r})
issues = json.loads(file.read_text()) if file.exists() else []
kind, verb, *rest = sys.argv[1:]
assert kind == "issue", kind
options = dict(zip(rest, rest[1:]))
if verb == "list":
    assert (options["--label"], options["--state"]) == ("nightly", "open")
    print(json.dumps([{{"number": each["number"], "body": each["body"]}} for each in issues if each["open"]]))
elif verb == "create":
    text = sys.stdin.read()
    issue = {{"number": len(issues) + 1, "title": options["--title"], "body": text, "comments": [], "open": True}}
    issues.append(issue)
else:
    issue = issues[int(rest[0]) - 1]
    assert issue["open"]
    if verb == "comment":
        issue["comments"].append(sys.stdin.read())
    elif verb == "edit":
        issue["body"] = sys.stdin.read()
    elif verb == "close":
        issue["open"] = False
        issue["comments"].append(options["--comment"])
    else:
        sys.exit(f"unknown command {{verb}}")
file.write_text(json.dumps(issues))
"""
LEGS = ("gate-cpu-stable", "gate-cpu-nightly")
#: Test, parameters, family, message. The first two are one cause on two devices.
SOFTMAX = ("suites.rules.test_registered::test_rule", "cpu-bf16-softmax", "rules", "AmpFailure: softmax is low on cpu")
ON_CUDA = ("suites.rules.test_registered::test_rule", "fake-cuda-fp16-softmax", "rules", SOFTMAX[3][:-3] + "fake-cuda")
OWN = ("tests.test_own::test_it", "", "project", "assert 0.25 < 0.1")


class Nights:
    """Runs of the nightly gate, one for each night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = script("nightly_issues")
        programs = folder / "programs"
        programs.mkdir()
        program = programs / "gh"
        program.write_text(GH.format(python=sys.executable, file=str(folder / "issues.json")), encoding="utf-8")
        program.chmod(0o755)

    def night(self, legs: dict[str, Any], *, complete: bool = True) -> None:
        """Run each leg with its failures; every leg has a test that passes."""
        ran = self.folder / f"night-{len(list(self.folder.glob('night-*')))}"
        for leg, failures in legs.items():
            (ran / leg).mkdir(parents=True)
            cases = ['<testcase classname="suites.rules.test_x" name="test_green[cpu-bf16]"/>']
            for test, parameters, family, message in failures:
                classname, _, name = test.partition("::")
                shown = f"{name}[{parameters}]" if parameters else name
                cases.append(
                    f'<testcase classname="{classname}" name="{shown}"><properties><property name="amp_family" '
                    f'value="{family}"/></properties><failure message={quoteattr(message)}/></testcase>'
                )
            text = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
            (ran / leg / "junit.xml").write_text(text, encoding="utf-8")
            (ran / leg / "record.json").write_text(json.dumps({"complete": complete}), encoding="utf-8")
        assert self.module.main([str(ran)]) == 0

    @property
    def issues(self) -> list[dict[str, Any]]:
        actual: list[dict[str, Any]] = json.loads((self.folder / "issues.json").read_text(encoding="utf-8"))
        return actual


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    actual = Nights(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RUN_URL", "https://example.org/runs/1")
    monkeypatch.setenv("RED", "false")
    return actual


def test_cause_on_several_devices_is_one_issue(nights: Nights) -> None:
    nights.night({LEGS[0]: [SOFTMAX, ON_CUDA], LEGS[1]: [SOFTMAX]})
    (issue,) = nights.issues
    assert issue["title"] == "nightly: rules: AmpFailure: softmax is low on cpu"
    assert issue["body"].count("suites.rules.test_registered::test_rule[") == 3
    assert "https://example.org/runs/1" in issue["body"]


def test_cause_of_a_project_has_the_name_of_its_test(nights: Nights) -> None:
    nights.night({LEGS[0]: [OWN]})
    assert nights.issues[0]["title"] == "nightly: tests.test_own::test_it: assert 0.25 < 0.1"
    nights.night({LEGS[0]: [(*OWN[:3], "assert 0.75 < 0.2")]})
    assert [len(issue["comments"]) for issue in nights.issues] == [1]  # numbers are not part of a cause


def test_lasting_cause_is_updated_and_gone_cause_is_closed(nights: Nights) -> None:
    nights.night({LEGS[0]: [SOFTMAX, OWN]})
    nights.night({LEGS[0]: [SOFTMAX]})
    assert [(issue["open"], len(issue["comments"])) for issue in nights.issues] == [(True, 1), (False, 1)]
    assert nights.issues[1]["comments"] == ["Gone in https://example.org/runs/1: gate-cpu-stable ran without it."]
    nights.night({LEGS[0]: []})
    assert not any(issue["open"] for issue in nights.issues)
    nights.night({LEGS[0]: [SOFTMAX]})  # it is back: the closed issue stays closed
    assert [issue["open"] for issue in nights.issues] == [False, False, True]


def test_cause_stays_open_until_its_leg_has_run(nights: Nights) -> None:
    nights.night({LEGS[1]: [SOFTMAX]})
    nights.night({LEGS[0]: []})
    assert nights.issues[0]["open"]
    nights.night({LEGS[0]: [], LEGS[1]: []}, complete=False)  # it was interrupted
    assert nights.issues[0]["open"]
    nights.night({LEGS[0]: [], LEGS[1]: []})
    assert not nights.issues[0]["open"]


def test_cause_on_two_legs_stays_open_until_both_have_run(nights: Nights) -> None:
    nights.night({LEGS[0]: [SOFTMAX], LEGS[1]: []})
    nights.night({LEGS[0]: [SOFTMAX], LEGS[1]: [SOFTMAX]})
    nights.night({LEGS[0]: []})
    assert nights.issues[0]["open"]
    nights.night({LEGS[0]: [], LEGS[1]: []})
    assert not nights.issues[0]["open"]


def test_night_with_many_causes_is_one_issue_and_closes_none(nights: Nights) -> None:
    nights.night({LEGS[0]: [SOFTMAX]})
    many = [(f"tests.test_a::test_{word}", "", "project", f"AmpFailure: {word}") for word in "abcdefghijkl"]
    nights.night({LEGS[0]: many})
    assert [issue["open"] for issue in nights.issues] == [True, True]
    assert nights.issues[1]["title"] == "nightly: the nightly gate: fails in 12 ways"


def test_red_night_without_a_failed_test_is_an_issue(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RED", "true")
    nights.night({LEGS[0]: []})
    assert nights.issues[0]["title"] == "nightly: the nightly gate: is red, and no test of it failed"
    monkeypatch.setenv("RED", "false")
    nights.night({LEGS[0]: []})
    assert not nights.issues[0]["open"]


def test_gh_that_fails_ends_the_script(nights: Nights) -> None:
    (nights.folder / "programs" / "gh").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    with pytest.raises(Exception, match="gh"):
        nights.night({LEGS[0]: [SOFTMAX]})
