"""Tests that a hook removes after collection, and runs that a conftest ends as green."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, Project, red, refused, summary

BOTH = "def test_it(amp):\n    pass\n\n\ndef test_other(amp):\n    pass\n\n\ndef test_plain():\n    pass\n"
_KEPT = "[item for item in items if 'plain' in item.name]"
_REMOVING = {
    "last": f"@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n    items[:] = {_KEPT}\n",
    "first": f"@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items):\n    items[:] = {_KEPT}\n",
    "wrapper": "@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_collection_modifyitems(items):\n"
    f"    yield\n    items[:] = {_KEPT}\n",
    "told": "def pytest_collection_modifyitems(config, items):\n"
    "    config.hook.pytest_deselected(items=[item for item in items if 'plain' not in item.name])\n"
    f"    items[:] = {_KEPT}\n",
    "finish": "@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_finish(session):\n"
    f"    items = session.items\n    items[:] = {_KEPT}\n",
}
SAID = "not run   2 (removed by a conftest.py or a plugin, which left 0 of 2)"


@pytest.mark.parametrize(("how", "workers"), [*((how, "0") for how in _REMOVING), ("last", "1"), ("told", "1")])
def test_tests_removed_by_a_hook_are_reported_and_red_if_requested(project: Project, how: str, workers: str) -> None:
    project.write(conftest=f"import pytest\n\n\n{_REMOVING[how]}", test_it=BOTH)
    result = project.run(*ON_CPU, "-n", workers)
    result.assert_outcomes(passed=1, deselected=2 if (how, workers) == ("told", "0") else 0)
    assert (result.ret, red(result)) == (0, [])
    assert SAID in summary(result)
    for named in ("test_it.py", "test_it.py::test_other"):
        result = project.run(*ON_CPU, "-n", workers, named, "test_it.py::test_plain")
        assert result.ret == 1
        count = 2 if named == "test_it.py" else 1
        assert red(result) == [
            (
                f"{named} was asked for: selected 0 of {count}, "
                "a conftest.py or a plugin removed them after they were collected"
            )
        ]


def test_requested_family_removed_by_a_hook_is_red(project: Project) -> None:
    project.write(conftest=f"import pytest\n\n\n{_REMOVING['last']}", test_plain="def test_plain():\n    pass\n")
    project.file("checks/__init__.py", "from pytest_amp.families import Family\n\nFAMILY = Family('rules')\n")
    project.file("checks/test_it.py", "def test_it(amp):\n    pass\n")
    result = project.here(*ON_CPU, "checks", "test_plain.py")
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith("checks was asked for: selected 0 of 1, ")


@pytest.mark.parametrize(
    "switch", [("-k", "plain"), ("--deselect=test_it.py::test_it", "--deselect=test_it.py::test_other")]
)
def test_tests_deselected_by_an_option_are_not_missed(project: Project, switch: tuple[str, ...]) -> None:
    project.write(test_it=BOTH)
    result = project.here(*ON_CPU, *switch, "test_it.py")
    result.assert_outcomes(passed=1, deselected=2)
    assert (result.ret, red(result)) == (0, [])
    assert SAID not in summary(result)


_ENDED = {
    "import": ("import sys\n\nsys.exit(0)\n", 4),
    "configure": ("import pytest\n\n\ndef pytest_configure():\n    pytest.exit('done', returncode=0)\n", 1),
    "first": (
        (
            "import pytest\n\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_configure():\n"
            "    pytest.exit('done', returncode=0)\n"
        ),
        1,
    ),
    "start": ("import pytest\n\n\ndef pytest_sessionstart():\n    pytest.exit('done', returncode=0)\n", 1),
    "collection": ("import pytest\n\n\ndef pytest_collection():\n    pytest.exit('done', returncode=0)\n", 1),
    "main": ("def pytest_cmdline_main():\n    return 0\n", 1),
    "finish": ("import pytest\n\n\ndef pytest_sessionfinish():\n    pytest.exit('done', returncode=0)\n", 1),
    "status": (
        (
            "import pytest\n\n\n@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_sessionfinish(session):\n"
            "    yield\n    session.exitstatus = 0\n"
        ),
        1,
    ),
}


@pytest.mark.parametrize(
    ("how", "workers"), [*((how, "0") for how in _ENDED), ("import", "1"), ("start", "1"), ("status", "1")]
)
def test_run_that_a_conftest_ends_as_green_is_red(project: Project, how: str, workers: str) -> None:
    text, status = _ENDED[how]
    project.write(conftest=text, test_it="def test_it(amp):\n    assert False\n")
    result = project.apart(*ON_CPU, "-n", workers)
    assert result.ret == status, result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("how", ["import", "start", "main"])
def test_run_without_the_plugin_can_be_ended_as_green(project: Project, how: str) -> None:
    project.write(conftest=_ENDED[how][0], test_it="def test_it():\n    assert False\n")
    assert project.apart().ret == 0


@pytest.mark.parametrize("switch", ["--help", "--version", "--markers", "--fixtures", "--collect-only"])
def test_options_that_run_no_test_end_with_0(project: Project, switch: str) -> None:
    project.write(test_it=BOTH)
    assert project.here(*ON_CPU, switch).ret == 0


def test_absent_device_is_refused_at_the_first_test(project: Project) -> None:
    """Collect no later files: thousands of tests, which could not run, would take minutes."""
    project.write(test_a="def test_it(amp):\n    pass\n", test_b="raise SystemExit('collected')\n")
    project.file("zone/test_c.py", "raise SystemExit('collected')\n")
    line = refused(project.here("--amp-device=simulated:0", "-p", "no:randomly"))
    assert "is not a device" in line
    line = refused(project.here("--amp-device=cuda"))
    assert line.startswith("--amp-device (command line): 'cuda' does not compute here ")


def test_workers_of_a_green_run_print_nothing(project: Project) -> None:
    """Only the controller judges a run."""
    project.write(test_it="def test_it(amp):\n    pass\n")
    result = project.apart(*ON_CPU, "-n", "2")
    assert result.ret == 0
    assert "ended with status 0" not in result.stdout.str() + result.stderr.str()
