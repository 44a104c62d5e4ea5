"""Options such as --help, which work even if the whole configuration is wrong."""

from __future__ import annotations

import pytest

from pytest_amp.config import OPTIONS
from tests.project import Project
from tests.test_ini import WRONG

OPTIONS_WRONG = [
    option.name if option.flag else f"{option.name}=nope" for option in OPTIONS if option.ini != "amp_strict"
]


@pytest.fixture
def wrong(project: Project) -> Project:
    """Return a project in which every ini key has a value that is refused."""
    project.file("pytest.ini", "[pytest]\n" + "".join(f"{key} = nope\n" for key in WRONG))
    project.write(test_it="def test_it(amp):\n    pass")
    return project


@pytest.mark.parametrize("arguments", [(), tuple(OPTIONS_WRONG)])
def test_help_lists_every_option_and_key(wrong: Project, arguments: tuple[str, ...]) -> None:
    result = wrong.here("--help", *arguments)
    assert result.ret == 0
    text = result.stdout.str()
    for option in OPTIONS:
        assert f"  {option.name}" in text
        assert f"  {option.ini} (string):" in text
    assert "mixed precision:" in text
    assert not result.errlines


def test_help_survives_a_device_hook_that_fails(wrong: Project) -> None:
    wrong.write(conftest="def pytest_amp_devices():\n    raise ZeroDivisionError")
    assert wrong.here("--help").ret == 0


def test_version_is_printed_despite_wrong_options(wrong: Project) -> None:
    result = wrong.here("--version", *OPTIONS_WRONG)
    assert (result.ret, f"pytest {pytest.__version__}" in result.stdout.str() + result.stderr.str()) == (0, True)
    result = wrong.here("--version", "--version", *OPTIONS_WRONG)
    assert (result.ret, "registered third-party plugins" in result.stdout.str() + result.stderr.str()) == (0, True)


def test_wrong_configuration_is_refused_without_help(wrong: Project) -> None:
    """Refuse the configuration of the tests above without --help, so that they prove something."""
    assert wrong.here().ret == pytest.ExitCode.USAGE_ERROR
    assert wrong.here("--markers").ret == pytest.ExitCode.USAGE_ERROR


def test_markers_are_listed_with_their_keywords(project: Project) -> None:
    result = project.here("--markers")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        ["@pytest.mark.amp(?, devices=None, *", "@pytest.mark.amp_parametrize(argname, *", "@pytest.mark.amp_long: *"]
    )


def test_fixtures_have_docstrings(project: Project) -> None:
    text = project.here("--fixtures").stdout.str()
    for name in ("amp", "amp_device", "amp_dtype", "amp_precision", "amp_autocast", "amp_scaler"):
        _, actual, rest = text.partition(f"\n{name}")
        assert actual, name
        assert "no docstring available" not in "\n".join(rest.splitlines()[:3])
