"""Text of a failure, and its command, which reruns just the test that failed."""

from __future__ import annotations

import re
import shlex

import pytest

from pytest_amp.failure import AmpFailure
from pytest_amp.text.quoted import quoted
from tests.project import Project

FAILING = """
import pytest

from pytest_amp.failure import AmpFailure


def operators(target):
    return ["aten::softmax.int", "aten::mm"]


class TestIt:
    @pytest.mark.amp_long
    @pytest.mark.amp(fake=True, dtypes=["fp32", "bf16"])
    @pytest.mark.amp_parametrize("operator", operators)
    @pytest.mark.parametrize("text", ["it's", "a b"])
    def test_it(self, amp, operator, text):
        raise AmpFailure("softmax returned bfloat16, the rule says float32", before="fp32", now="lower", likely="moved")


def test_other(amp):
    pass
"""


def test_message_has_one_line_for_each_part() -> None:
    failure = AmpFailure(
        "softmax returned bfloat16",
        before="fp32 since torch 1.6",
        now="lower_precision_fp on torch 2.15",
        likely="the operator left the list",
        rerun="pytest x",
        accept="edit the spec",
        label_before="rule",
    )
    assert str(failure).splitlines() == [
        "AmpFailure: softmax returned bfloat16",
        "  rule      fp32 since torch 1.6",
        "  now       lower_precision_fp on torch 2.15",
        "  likely    the operator left the list",
        "  rerun     pytest x",
        "  accept    edit the spec",
    ]
    failure.rerun_with("pytest y")
    assert "pytest x" in str(failure)


def test_message_is_cut_to_one_line_for_each_part() -> None:
    failure = AmpFailure("one\ntwo", before="a\nb\n" * 20, now="c", likely="d", accept="e")
    failure.rerun_with("pytest x")
    assert len(str(failure).splitlines()) == 6
    assert str(failure).splitlines()[0] == "AmpFailure: one two"


def test_failure_is_no_subclass_of_exception() -> None:
    """Pass through code under test that catches every Exception."""
    assert not issubclass(AmpFailure, Exception)
    assert issubclass(AmpFailure, pytest.fail.Exception)


def test_rerun_command_selects_the_failed_test_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command in the original folder, for each device, with fp32, quotes, blanks, the long tier and a seed."""
    project.file("pytest.ini", "[pytest]\n")
    project.file("deep/test_it.py", FAILING)
    below = project.path / "elsewhere"
    below.mkdir()
    monkeypatch.chdir(below)
    arguments = ("--amp-device=cpu,fake:xpu", "--amp-dtype=bf16", "--amp-tier=all", "--amp-seed=7")
    result = project.here("../deep", *arguments)
    assert result.ret == 1
    commands = [line.removeprefix("  rerun     ") for line in result.outlines if line.startswith("  rerun ")]
    assert len(commands) == len(set(commands)) == 16  # cpu and fake-xpu in bf16 and fp32, 2 operators, 2 texts
    assert sum("--amp-device=fake:xpu" in command for command in commands) == 8
    for command in commands[::5]:
        words = shlex.split(command)
        assert words[0] == "pytest"
        again = project.here(*words[1:])
        again.assert_outcomes(failed=1)
        assert f"  rerun     {command}" in again.outlines
        assert {"--amp-seed=7", "--amp-tier=all"} <= set(words)


#: Conftest of a project: a case for the suites, which are elsewhere.
ADDING = """
from pathlib import Path

import pytest_amp
from torch import nn
import torch
from pytest_amp.cases import Case

pytest_amp.__path__.append(str(Path(__file__).parents[1] / "installed" / "pytest_amp"))


def pytest_amp_cases():
    yield Case("ours", lambda: nn.Linear(4, 4), lambda: torch.ones(2, 4), lambda model, batch: model(batch).sum())
"""

#: A suite that fails for every case.
ADDED = """
import pytest

from pytest_amp.failure import AmpFailure


@pytest.mark.amp_parametrize("case", lambda target: [pytest.param(each, id=each.name) for each in target.added_cases()])
def test_it(amp, case):
    raise AmpFailure("it is off")
"""


def test_rerun_command_reaches_a_projects_case_in_an_installed_suite(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use --pyargs: with a path pytest would not read the conftest.py of the folder, which has the case."""
    for package in ("pytest_amp", "pytest_amp/suites"):
        project.file(f"installed/{package}/__init__.py", "")
    project.file("installed/pytest_amp/suites/test_it.py", ADDED)
    monkeypatch.chdir(project.file("mine/conftest.py", ADDING).parent)
    result = project.apart("--pyargs", "pytest_amp.suites.test_it", "--amp-device=cpu", "--amp-dtype=bf16")
    (command,) = [line.removeprefix("  rerun     ") for line in result.outlines if line.startswith("  rerun ")]
    assert command.startswith("pytest --pyargs 'pytest_amp.suites.test_it::test_it[cpu-bf16-ours]' ")
    project.apart(*shlex.split(command)[1:]).assert_outcomes(failed=1)


def test_message_in_the_terminal_has_at_most_twelve_lines(project: Project) -> None:
    project.write(test_it=FAILING)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-tier=all", "-k", "bf16 and mm")
    lines = result.outlines
    starts = [number for number, line in enumerate(lines) if line.startswith("AmpFailure: ")]
    lengths = [next(n for n in range(start, len(lines)) if re.match("[_=]{3}", lines[n])) - start for start in starts]
    assert lengths[0] in range(5, 13)
    assert lengths[1:] == [3]  # the second has the cause of the first: what, as which test, and its command
    assert "Traceback" not in result.stdout.str()


def test_rerun_command_has_the_baseline(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')")
    arguments = ("--amp-device=cpu", "--amp-dtype=bf16")
    assert project.here(*arguments, "--amp-record=old.json").ret == 0
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 2, kind='count')")
    result = project.here(*arguments, "--amp-baseline=old.json", "--amp-strict", "--amp-record=new.json")
    (command,) = [line.removeprefix("  rerun     ") for line in result.outlines if line.startswith("  rerun ")]
    assert "--amp-record" not in command
    again = project.here(*shlex.split(command)[1:])
    again.assert_outcomes(failed=1)
    assert "  now       2 on torch" in again.stdout.str()


def test_rerun_command_omits_the_xdist_group(project: Project) -> None:
    mark = "@pytest.mark.xdist_group('one')\n"
    project.write(test_it=FAILING.replace("    @pytest.mark.amp_long\n", f"    {mark}"))
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-n", "1", "--dist=loadgroup", "-k", "bf16 and mm")
    commands = [line.removeprefix("  rerun     ") for line in result.outlines if line.startswith("  rerun ")]
    assert len(commands) == 2
    for command in commands:
        assert "@one" not in command
        project.here(*shlex.split(command)[1:]).assert_outcomes(failed=1)


def test_other_failures_name_no_command(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    raise ValueError('mine')")
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    assert "rerun" not in result.stdout.str()
    result.stdout.fnmatch_lines(["E*ValueError: mine"])


def test_quoted_error_ends_with_an_ellipsis_if_cut() -> None:
    assert quoted(ValueError("one\n  two"), 7) == "one two"
    assert quoted(ValueError("one\n  two"), 6) == "one t…"
