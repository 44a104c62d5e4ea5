"""Families: the package of a test, and the kinds of device on which it exists."""

from __future__ import annotations

import pytest

from tests.project import SIMULATED, Project, refused, summary

REAL_ONLY = "from pytest_amp.families import Family\n\nFAMILY = Family('gradients')\n"
EVERYWHERE = (
    "from pytest_amp.devices import DeviceKind\nfrom pytest_amp.families import Family\n\n"
    "FAMILY = Family('rules', kinds=frozenset(DeviceKind))\n"
)
TEST = "import pytest\n\n\n@pytest.mark.amp(fake=True)\ndef test_it(amp):\n    amp.observe('x', 1, kind='count')\n"


@pytest.fixture
def families(project: Project) -> Project:
    """Return two families, one with a folder below it, and tests of none."""
    for name, text in (("rules", EVERYWHERE), ("gradients", REAL_ONLY)):
        project.file(f"suite/{name}/__init__.py", text)
        project.file(f"suite/{name}/test_{name}.py", TEST)
    project.file("suite/__init__.py", "")
    project.file("suite/rules/below/__init__.py", "")
    project.file("suite/rules/below/test_below.py", TEST.replace("'x'", "'below'"))
    project.write(test_own=TEST)
    return project


def test_family_is_part_of_keys_and_counts(families: Project) -> None:
    result = families.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json")
    assert families.observed("new.json") == dict.fromkeys(
        ["gradients/cpu/bf16/x", "project/cpu/bf16/x", "rules/cpu/bf16/below", "rules/cpu/bf16/x"], 1
    )
    assert summary(result)[0] == "ran       cpu-bf16  gradients 1, project 1, rules 2"


def test_keys_and_names_of_tests_ignore_the_folder_of_a_suite(families: Project) -> None:
    """Ignore the path above the family's own folder: a suite may be installed elsewhere."""
    families.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json")
    tests = {o["key"]: o["test"] for o in families.observations("new.json")}
    assert tests == {
        "gradients/cpu/bf16/x": "test_gradients::test_it",
        "project/cpu/bf16/x": "test_own::test_it",
        "rules/cpu/bf16/below": "below/test_below::test_it",
        "rules/cpu/bf16/x": "test_rules::test_it",
    }


def test_family_runs_on_its_kinds_of_device_only(families: Project) -> None:
    families.write(conftest=SIMULATED)
    result = families.here("--amp-device=cpu,simulated,fake:cuda", "--amp-dtype=bf16", "suite")
    lines = summary(result)
    assert lines[:3] == [
        "ran       cpu-bf16        gradients 1, rules 2",
        "ran       fake-cuda-bf16  rules 2",
        "ran       simulated-bf16  gradients 1, rules 2",
    ]
    assert "not run   1 (the gradients family does not exist on a fake device)" in lines
    assert result.ret == 0


def test_family_of_the_wrong_type_is_refused(project: Project) -> None:
    project.file("suite/__init__.py", "FAMILY = 'rules'\n")
    project.file("suite/test_it.py", TEST)
    line = refused(project.here("--amp-device=cpu"))
    assert line.endswith("suite.FAMILY is 'rules', not a pytest_amp.families.Family")


def test_fixture_that_replaces_the_plugins_is_refused_for_a_family(families: Project) -> None:
    """Refuse in one line that names the file; in a project's own tests a fixture of that name is allowed."""
    families.write(conftest="import pytest\n\n\n@pytest.fixture\ndef amp():\n    return 3\n")
    says = refused(families.apart("--amp-device=cpu", "--amp-dtype=bf16"))
    assert says == (
        f"{families.path / 'conftest.py'}: its fixture amp takes the place of this plugin's, which the suites need; "
        "expected another name, or a conftest.py in the folder of the tests that use it"
    )
    families.write(test_own="def test_it(amp):\n    assert amp == 3\n")
    families.apart("test_own.py").assert_outcomes(passed=1)


def test_family_can_belong_to_the_long_tier_on_a_kind_of_device(families: Project) -> None:
    long = REAL_ONLY.replace("Family('gradients')", "Family('gradients', long_on=frozenset({DeviceKind.CPU}))")
    families.file("suite/gradients/__init__.py", f"from pytest_amp.devices import DeviceKind\n{long}")
    families.write(conftest=SIMULATED)
    lines = summary(families.here("--amp-device=cpu,simulated", "--amp-dtype=bf16", "suite"))
    assert lines[:2] == ["ran       cpu-bf16        rules 2", "ran       simulated-bf16  gradients 1, rules 2"]
    assert "not run   1 (gradients on cpu: long tier (--amp-tier=long))" in lines
    lines = summary(families.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-tier=all", "suite"))
    assert lines[0] == "ran       cpu-bf16  gradients 1, rules 2"
    lines = summary(families.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-tier=long", "suite"))
    assert lines[0] == "ran       cpu-bf16  gradients 1"


def test_family_of_the_long_tier_alone_is_reported_as_not_run(families: Project) -> None:
    long = REAL_ONLY.replace("Family('gradients')", "Family('gradients', long_on=frozenset({DeviceKind.CPU}))")
    families.file("suite/gradients/__init__.py", f"from pytest_amp.devices import DeviceKind\n{long}")
    result = families.here("--amp-device=cpu", "--amp-dtype=bf16", "suite/gradients")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "not run   1 (gradients on cpu: long tier (--amp-tier=long))" in summary(result)
