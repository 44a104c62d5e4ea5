"""Tests that a project's ini leaves out of a requested family count as missing."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, Project, red

PASSING = "def test_it(amp):\n    pass\n\n\ndef test_other(amp):\n    pass\n"
FAMILY = "from pytest_amp.families import Family\n\nFAMILY = Family('rules')\n"


@pytest.fixture
def checks(project: Project) -> Project:
    """Return a family of two folders and two files, and a project's own tests."""
    project.file("checks/__init__.py", FAMILY)
    project.file("checks/test_first.py", PASSING)
    project.file("checks/more/__init__.py", "")
    project.file("checks/more/test_second.py", PASSING)
    project.file("checks/test_for_classes.py", "class TestAll:\n    def test_it(self, amp):\n        pass\n")
    project.file("own/test_own.py", PASSING)
    return project


@pytest.mark.parametrize(
    ("setting", "where", "valid"),
    [
        ("norecursedirs=more", "checks/more", "--ignore="),
        ("norecursedirs=own checks", "checks", "--ignore="),
        ("python_files=test_f*.py", "checks/more/test_second.py", "test_*.py among its patterns"),
        ("python_functions=test_i*", "checks/test_first.py", "test among its prefixes"),
        ("python_classes=Check", "checks/test_for_classes.py", "Test among its prefixes"),
    ],
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_ini_that_leaves_out_checks_of_a_family_is_refused(
    checks: Project, setting: str, where: str, valid: str, workers: str
) -> None:
    run = checks.here if workers == "0" else checks.apart
    result = run(*ON_CPU, "-o", setting, "-n", workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    key, _, value = setting.partition("=")
    message = f"{key} = {value}: leaves out checks of a family, in {checks.path / where}; expected {valid}"
    assert sum(message in line for line in result.stderr.lines) == 1, result.stderr.str()


CONFTEST = "or the hook pytest_ignore_collect: leaves out checks of a family, in {path}; expected --ignore={path}"
CLASS = "leaves out checks of a family, in {path}; expected a class without a constructor, with tests"


@pytest.mark.parametrize(
    ("file", "text", "where", "message"),
    [
        ("conftest.py", "collect_ignore = ['checks/more']", "checks/more", CONFTEST),
        ("conftest.py", "collect_ignore_glob = ['*/test_f*']", "checks/test_first.py", CONFTEST),
        ("checks/conftest.py", "collect_ignore = ['test_first.py']", "checks/test_first.py", CONFTEST),
        (
            "conftest.py",
            "def pytest_ignore_collect(collection_path):\n    return collection_path.name == 'checks' or None",
            "checks",
            CONFTEST,
        ),
        (
            "checks/test_for_classes.py",
            "class TestAll:\n    def __init__(self):\n        pass\n\n    def test_it(self, amp):\n        pass\n",
            "checks/test_for_classes.py",
            f"the class TestAll with __init__, of which pytest makes no test,: {CLASS}",
        ),
        (
            "checks/test_for_classes.py",
            "class TestAll:\n    def check_it(self, amp):\n        pass\n",
            "checks/test_for_classes.py",
            f"the class TestAll, without a test,: {CLASS}",
        ),
        (
            "checks/test_first.py",
            "def check_it(amp):\n    pass\n",
            "checks/test_first.py",
            "leaves out checks of a family, in {path}; expected at least one test in it, or another name",
        ),
    ],
    ids=["folder", "glob", "own", "hook", "constructor", "class", "module"],
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_conftest_or_class_that_leaves_out_checks_is_refused(  # noqa: PLR0917  # the columns of a table
    checks: Project, file: str, text: str, where: str, message: str, workers: str
) -> None:
    checks.file(file, text)
    run = checks.here if workers == "0" else checks.apart
    result = run(*ON_CPU, "-n", workers, "-Wignore")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = message.format(path=checks.path / where)
    assert sum(expected in line for line in result.stderr.lines) == 1, result.stderr.str()


SKIPPING = "import pytest\n\npytest.importorskip('no_such_package')\n"


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("checks/__init__.py", SKIPPING + FAMILY),
        ("checks/conftest.py", SKIPPING),
        ("checks/test_first.py", SKIPPING + PASSING),
    ],
    ids=["package", "conftest", "module"],
)
def test_family_that_skips_itself_is_red_from_any_rootdir(
    checks: Project, monkeypatch: pytest.MonkeyPatch, file: str, text: str, workers: str
) -> None:
    checks.file(file, text)
    (checks.path / "checks/more/test_second.py").unlink()
    (checks.path / "checks/test_for_classes.py").unlink()
    elsewhere = checks.file("elsewhere/test_here.py", PASSING).parent
    monkeypatch.chdir(elsewhere)
    # A conftest.py in the folder of an argument is imported first: pytest itself fails then.
    arguments = ("..",) if file.endswith("conftest.py") else ("../checks", "test_here.py")
    for rootdir in (str(elsewhere), str(checks.path)):
        result = checks.apart(*ON_CPU, "-n", workers, f"--rootdir={rootdir}", *arguments)
        assert result.ret == 1, result.stdout.str() + result.stderr.str()
        lines = [line for line in red(result) if line.startswith("rules: no check was executed, ")]
        assert any("no_such_package" in line for line in lines)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_requested_file_that_skips_itself_is_red(checks: Project, workers: str) -> None:
    """Name the file if it is requested; list it if its family is, and other tests of it ran."""
    checks.file("checks/more/test_second.py", SKIPPING + PASSING)
    run = checks.here if workers == "0" else checks.apart
    for named in ("checks/more/test_second.py", "checks/more"):
        result = run(*ON_CPU, "-n", workers, "checks/test_first.py", named)
        assert result.ret == 1
        (line,) = red(result)
        assert line.startswith("checks/more/test_second.py was asked for, and was skipped while it was collected: ")
    result = run(*ON_CPU, "-n", workers, "checks")
    assert (result.ret, red(result)) == (0, [])


@pytest.mark.parametrize(
    ("setting", "arguments"),
    [
        ("norecursedirs=more", ("checks/test_first.py",)),
        ("python_files=test_f*.py", ("checks/test_first.py",)),
        ("python_files=test_f*.py", ("checks", "--ignore=checks/more")),
        ("python_functions=test_o*", ("own",)),
        ("norecursedirs=own", ()),
        ("python_classes=Check", ("checks/test_first.py",)),
        ("addopts=--ignore-glob=*/more/test_*", ("checks",)),
    ],
)
def test_checks_that_were_not_requested_can_be_left_out(
    checks: Project, setting: str, arguments: tuple[str, ...]
) -> None:
    result = checks.here(*ON_CPU, "-o", setting, *arguments)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()


def test_folder_ignored_by_name_can_match_norecursedirs(checks: Project) -> None:
    assert checks.here(*ON_CPU, "-o", "norecursedirs=more", "--ignore=checks/more").ret == 0


@pytest.mark.parametrize(("folder", "status"), [("checks", 4), ("own", 0)])
def test_families_without_assertions_are_refused(
    checks: Project, monkeypatch: pytest.MonkeyPatch, folder: str, status: int
) -> None:
    """Refuse -O, which removes assertions, also those of shared code; a project's own tests are not judged."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    result = checks.fresh(*ON_CPU, folder)
    assert result.ret == status, result.stdout.str() + result.stderr.str()
    refused = "python -O, or PYTHONOPTIMIZE=1: removes assert statements" in result.stderr.str()
    assert refused is (status == 4)


def test_packages_of_a_project_can_have_any_encoding(project: Project) -> None:
    """Read packages whose names mean something else to this plugin."""
    for folder in ("build", "own_checks"):
        path = project.file(f"{folder}/__init__.py", "")
        path.write_bytes("# -*- coding: latin-1 -*-\nFAMILY = 'Müller'\n".encode("latin-1"))
    project.file("own_checks/test_left.py", "def test_it():\n    pass\n")
    project.file("own_checks/check_right.py", "def test_it():\n    pass\n")
    result = project.here("-o", "python_files=check_*.py")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
