"""JUnit files contain device, dtype, family and observations."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.project import Project

TEST = """
def test_it(amp):
    amp.observe("softmax.int", "fp32", kind="rule")
    amp.observe("error", 0.5, kind="error")


def test_plain():
    pass
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_junit_file_has_properties_of_each_test(project: Project, workers: str) -> None:
    project.file("rules/__init__.py", "from pytest_amp.families import Family\n\nFAMILY = Family('rules')\n")
    project.file("rules/test_it.py", TEST)
    result = project.run("--amp-device=cpu", "--amp-dtype=bf16", "--junit-xml=junit.xml", "-n", workers)
    assert result.ret == 0
    actual = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in ET.parse(project.path / "junit.xml").iter("testcase")  # noqa: S314  # our own file
    }
    assert actual == {
        "test_it[cpu-bf16]": {
            "amp_device": "cpu",
            "amp_dtype": "bf16",
            "amp_family": "rules",
            "amp rules/cpu/bf16/softmax.int": "fp32 (pass)",
            "amp rules/cpu/bf16/error": "0.5 (pass)",
        },
        "test_plain": {},
    }


def test_junit_file_reports_a_changed_observation(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n")
    arguments = ("--amp-device=cpu", "--amp-dtype=bf16")
    assert project.here(*arguments, "--amp-record=old.json").ret == 0
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 2, kind='count')\n")
    assert project.here(*arguments, "--amp-baseline=old.json", "--junit-xml=junit.xml").ret == 1
    text = (project.path / "junit.xml").read_text(encoding="utf-8")
    assert 'name="amp project/cpu/bf16/x" value="2 (changed)"' in text
    assert "AmpFailure: x on cpu-bf16 is no longer what the baseline has" in text
