"""--amp-known: faults that a project accepts are expected, listed, and red once they are gone."""

from __future__ import annotations

import pytest

from pytest_amp.report.inline import linked
from tests.project import Project, red, refused, summary

ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16", "--amp-known=known.toml")
TESTS = """
import pytest


@pytest.mark.parametrize("n", [1, 2])
def test_it(amp, n):
    amp.observe(f"value {n}", n, kind="count")
    assert n not in FAILING


def test_other(amp):
    pass
"""


def known(key: str, reason: str = "we wait", report: str = "owner/repo#1") -> str:
    return f'[[known]]\nkey = "{key}"\nreason = "{reason}"\nreport = "{report}"\n'


def project_with(project: Project, failing: str, *keys: str) -> Project:
    project.write(test_it=TESTS.replace("FAILING", failing))
    project.file("known.toml", "\n".join(known(key) for key in keys))
    return project


KEYS = {
    "test": "project/cpu/bf16/test_it::test_it[2]",
    "tests": "project/*/test_it::test_it[*]",
    "observation": "project/cpu/bf16/value 2",
}


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_known_fault_is_expected_and_listed(project: Project, key: str, workers: str) -> None:
    result = project_with(project, "(2,)", key).apart(*ON_CPU, "-n", workers, "--amp-report=md:page.md")
    assert result.ret == 0
    result.assert_outcomes(passed=2, xfailed=1)
    line = f"{key}: 1 failed: we wait (owner/repo#1)"
    assert f"known     {line}" in summary(result)
    assert f"- known: {linked(line)}" in (project.path / "page.md").read_text(encoding="utf-8")


def test_unlisted_failure_is_red(project: Project) -> None:
    result = project_with(project, "(1, 2)", KEYS["test"]).here(*ON_CPU)
    assert result.ret == 1
    result.assert_outcomes(passed=1, xfailed=1, failed=1)


def test_known_fault_that_is_gone_is_red(project: Project) -> None:
    result = project_with(project, "()", KEYS["tests"]).here(*ON_CPU)
    result.assert_outcomes(passed=3)
    assert result.ret == 1
    assert red(result) == [
        f"known, and gone: {KEYS['tests']}: all 2 of its checks passed; remove the entry (owner/repo#1)"
    ]


def test_known_fault_without_a_test_in_the_run_is_listed(project: Project) -> None:
    result = project_with(project, "(2,)", KEYS["test"], "rules/*/rms_norm").here(*ON_CPU, "-k", "other")
    assert result.ret == 0
    assert [line for line in summary(result) if line.startswith("known")] == [
        f"known     {KEYS['test']}: nothing of it ran: we wait (owner/repo#1)",
        "known     rules/*/rms_norm: nothing of it ran: we wait (owner/repo#1)",
    ]


def test_message_of_a_gone_fault_counts_one_check(project: Project) -> None:
    result = project_with(project, "()", KEYS["test"]).here(*ON_CPU)
    assert red(result) == [f"known, and gone: {KEYS['test']}: its one check passed; remove the entry (owner/repo#1)"]


def test_key_absent_from_the_baseline_is_reported(project: Project) -> None:
    """Report a key that may be misspelt; a record has no entry for a test's own key."""
    project_with(project, "()", "project/*/valeu 2", "project/*/test_it::test_oter").here(
        *ON_CPU[:2], "--amp-record=old.json"
    )
    result = project.here(*ON_CPU, "-k", "test_it", "--amp-baseline=old.json")
    assert [line for line in summary(result) if line.startswith("known")] == [
        "known     project/*/valeu 2: nothing of it ran, and the baseline has no such key: we wait (owner/repo#1)",
        "known     project/*/test_it::test_oter: nothing of it ran: we wait (owner/repo#1)",
    ]


def with_a_known_change(project: Project) -> None:
    """Write a project whose rule differs from ``old.json``, and a file that lists the change."""
    source = "def test_it(amp):\n    amp.observe('rule', {!r}, kind='rule')\n"
    project.file("known.toml", known("project/cpu/*/rule"))
    project.write(test_it=source.format("fp32"))
    assert project.here(*ON_CPU[:2], "--amp-record=old.json").ret == 0
    project.write(test_it=source.format("none"))


def test_known_change_from_the_baseline_is_green(project: Project) -> None:
    with_a_known_change(project)
    assert project.here(*ON_CPU[:2], "--amp-baseline=old.json").ret == 1
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert result.ret == 0
    assert "changed   project/cpu/bf16/rule: fp32 -> none" in summary(result)


def test_accepted_change_is_red_until_its_row_is_removed(project: Project) -> None:
    with_a_known_change(project)
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-accept")
    assert f"accepted  1 difference is now in {project.path / 'old.json'}" in summary(result)
    assert red(result) == ["known, and gone: project/cpu/*/rule: its one check passed; remove the entry (owner/repo#1)"]
    project.file("known.toml", "")
    assert project.here(*ON_CPU, "--amp-baseline=old.json").ret == 0


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ('devices = ["cpu"]', 1),
        ('devices = ["cuda", "fake-cpu"]', 0),
        ('dtypes = "bf16"', 1),
        ('dtypes = ["fp16"]', 0),
        ('since = "2.0"', 1),
        ('until = "2.0"', 0),
        ('raises = "AssertionError"', 1),
        ('raises = ["AmpFailure", "KeyError"]', 0),
        ('machine = "packs_16_bit_additions"', 0),
    ],
)
def test_columns_limit_a_fault(project: Project, column: str, expected: int) -> None:
    project_with(project, "(2,)", KEYS["test"])
    project.file("known.toml", known(KEYS["test"]) + column)
    result = project.here(*ON_CPU)
    result.assert_outcomes(passed=2, xfailed=expected, failed=1 - expected)


def test_rows_with_one_key_are_listed_with_their_dtypes(project: Project) -> None:
    project_with(project, "(2,)")
    rows = [known(KEYS["test"]) + f'dtypes = ["{dtype}"]\n' for dtype in ("bf16", "fp16")]
    project.file("known.toml", "\n".join(rows))
    lines = [line for line in summary(project.here(*ON_CPU)) if line.startswith("known")]
    assert lines == [
        f"known     {KEYS['test']} (bf16): 1 failed: we wait (owner/repo#1)",
        f"known     {KEYS['test']} (fp16): nothing of it ran: we wait (owner/repo#1)",
    ]


def test_row_can_have_several_keys(project: Project) -> None:
    project_with(project, "(1, 2)")
    keys = [KEYS["test"], KEYS["test"].replace("2", "1")]
    project.file("known.toml", known("KEYS").replace('"KEYS"', str(keys)))
    project.here(*ON_CPU).assert_outcomes(passed=1, xfailed=2)


def test_unknown_exception_of_a_row_is_red(project: Project) -> None:
    project_with(project, "(2,)", KEYS["test"])
    project.file("known.toml", known(KEYS["test"]) + 'raises = "torch.NoSuchError"')
    result = project.here(*ON_CPU)
    result.assert_outcomes(passed=2, failed=1)
    names = "raises names 'torch.NoSuchError', which is not an exception here"
    assert red(result) == [f"--amp-known: {KEYS['test']}: {names}"]


def test_known_fault_leaves_skips_and_errors_unchanged(project: Project) -> None:
    project.file("known.toml", known("project/*"))
    project.write(
        test_it="""
        import pytest

        @pytest.fixture
        def broken():
            raise ValueError

        def test_skipped(amp):
            pytest.skip("no")

        def test_error(amp, broken):
            pass

        def test_passes(amp):
            pass
        """
    )
    result = project.here(*ON_CPU)
    result.assert_outcomes(passed=1, skipped=1, errors=1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[known", "known.toml: not TOML: "),
        ("known = 3", "known.toml: 'known'; expected tables [[known]] with key, reason and report"),
        ("[other]", "known.toml: 'other'; expected tables [[known]] with key, reason and report"),
        (known("a/b/c/d").replace("reason", "why"), "[[known]] number 1: reason is None; expected text in each of key"),
        (known("a/b/c/d", reason=" "), "[[known]] number 1: reason is ' '; expected text in each of key, reason"),
        (known("a/b/c/d") + "extra = 1", "[[known]] number 1: extra is 1; expected text in each of key, reason"),
        (known("softmax"), "'softmax' is not a key; expected family/device/dtype/name, with * for anything"),
        (known("a/b/c/d") * 2, "the key 'a/b/c/d' is listed twice"),
    ],
)
def test_malformed_file_is_refused(project: Project, text: str, problem: str) -> None:
    project.file("known.toml", text)
    line = refused(project.here(*ON_CPU))
    assert line.startswith(f"--amp-known (command line): {project.path / 'known.toml'}: ")
    assert problem in line


def test_missing_file_is_refused(project: Project) -> None:
    assert refused(project.here(*ON_CPU)).endswith("known.toml: No such file or directory; expected a TOML file")
