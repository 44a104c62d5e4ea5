"""Ini keys: each option has one, in every kind of file; command line, then ini, then default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_amp.config import OPTIONS
from tests.docs.reference import INI
from tests.project import Project, ids, refused

#: For each ini key a value that is wrong on any machine, and the text of the refusal.
WRONG = {
    "amp_device": "'nope' is not a device",
    "amp_dtype": "'nope' is not a dtype",
    "amp_baseline": "is not a file",
    "amp_record": "cannot be written",
    "amp_speed": "'nope' is not a speed mode",
    "amp_report": "'nope' is not a report format",
    "amp_allow_missing": "'nope' is not something that may be missing",
    "amp_strict": "'nope' is not a truth value",
    "amp_accept": "'nope' is not a truth value",
    "amp_floors": "No such file or directory",
    "amp_known": "No such file or directory",
    "amp_tier": "'nope' is not a tier",
    "amp_tolerance_scale": "'nope' is not a number above 0",
    "amp_seed": "'nope' is not a seed",
    "amp_timeout": "'nope' is not a time limit",
}
#: Files by name, with a place for a key and a value.
FILES = {
    "pytest.ini": "[pytest]\n{key} = {value}\n",
    "tox.ini": "[pytest]\n{key} = {value}\n",
    "pytest.toml": '[pytest]\n{key} = "{value}"\n',
    "pyproject.toml": '[tool.pytest]\n{key} = "{value}"\n',
}
OLDER = '[tool.pytest.ini_options]\n{key} = "{value}"\n'


def test_options_all_have_an_ini_key() -> None:
    assert set(WRONG) == {option.ini for option in OPTIONS}
    assert len(OPTIONS) == 15


@pytest.mark.parametrize("key", WRONG)
def test_wrong_value_is_refused_with_its_key_and_file(project: Project, key: str) -> None:
    value = "nowhere/nope" if key == "amp_record" else "nope"
    for name, text in FILES.items():
        path = project.file(name, text.format(key=key, value=value))
        line = refused(project.here())
        assert line.startswith(f"{key} ({name}): ")
        assert WRONG[key] in line
        assert "; expected " in line
        path.unlink()
    project.file("pyproject.toml", OLDER.format(key=key, value=value))
    assert refused(project.here()).startswith(f"{key} (pyproject.toml): ")


@pytest.mark.parametrize("value", ['["cpu", "fake:cuda"]', "true", "3", "{ a = 1 }", '["a"]'])
@pytest.mark.parametrize("key", ["amp_device", "amp_strict", "amp_seed"])
def test_value_that_is_no_text_is_refused(project: Project, key: str, value: str) -> None:
    project.file("pytest.toml", f"[pytest]\n{key} = {value}\n")
    assert refused(project.here()).startswith(f"{key} (pytest.toml): ")


def test_list_in_the_ini_options_table_is_refused(project: Project) -> None:
    project.file("pyproject.toml", '[tool.pytest.ini_options]\namp_device = ["cpu", "nope"]\n')
    result = project.apart()  # pytest itself warns of it
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert line == "ERROR: amp_device (pyproject.toml): ['cpu', 'nope'] is a list; expected text, \"cpu,nope\""


@pytest.mark.parametrize("option", ["--amp-baseline", "--amp-record", "--amp-known", "--amp-floors"])
def test_empty_file_name_is_refused(project: Project, option: str) -> None:
    assert refused(project.here(f"{option}=")) == f"{option} (command line): '' names no file; expected a path"


def test_command_line_overrides_ini_and_ini_overrides_the_default(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    listed = ("--collect-only", "-q")
    project.file("pytest.ini", "[pytest]\namp_device = cpu\namp_dtype = fp16\namp_seed = nope\n")
    assert ids(project.here(*listed, "--amp-seed=1")) == ["cpu-fp16"]
    assert ids(project.here(*listed, "--amp-seed=1", "--amp-dtype=bf16")) == ["cpu-bf16"]
    project.file("pytest.ini", "[pytest]\namp_device = cpu\n")
    assert ids(project.here(*listed)) == ["cpu-bf16", "cpu-fp16"]


def test_header_shows_each_value_and_its_source(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    project.file("pytest.toml", '[pytest]\namp_dtype = "float16"\namp_seed = "3"\naddopts = ["--amp-tier=all"]\n')
    result = project.here("--amp-device=cpu", "-o", "amp_tolerance_scale=2")
    (line,) = [line for line in result.outlines if line.startswith("amp: torch")]
    assert line.partition(", ")[2] == (
        "device cpu (command line), dtype fp16 (pytest.toml), speed auto (default), tier all (addopts), "
        "tolerance_scale 2.0 (-o on the command line), seed 3 (pytest.toml)"
    )
    assert result.ret == 0


def test_header_is_absent_without_options(project: Project) -> None:
    project.write(test_it="def test_it():\n    pass")
    assert not [line for line in project.here("-v").outlines if line.startswith("amp")]


def test_addopts_of_the_environment_are_named_as_the_source(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--amp-seed=nope")
    assert refused(project.here()).startswith("--amp-seed (addopts): 'nope' ")


def test_relative_paths_start_at_the_ini_file_or_the_working_directory(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    project.file("pytest.ini", "[pytest]\namp_report = json:in_ini.json\n")
    below = project.path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    result = project.here("..", "--amp-device=cpu", "--amp-record=typed.json")
    assert result.ret == 0
    assert sorted(path.relative_to(project.path) for path in project.path.rglob("*.json")) == [
        Path("below/typed.json"),
        Path("in_ini.json"),
    ]


def test_home_directory_is_expanded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project.path))
    project.write(test_it="def test_it(amp):\n    pass")
    assert project.here("--amp-device=cpu", "--amp-record=~/new.json").ret == 0
    assert (project.path / "new.json").is_file()


def test_workers_read_the_ini_file_of_the_controller(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    assert amp.config.seed == 3")
    project.file(
        "other.ini", "[pytest]\namp_device = cpu\namp_dtype = fp16\namp_seed = 3\namp_report = json:new.json\n"
    )
    result = project.apart("-c", "other.ini", "-n", "1")
    result.assert_outcomes(passed=1)
    assert project.record("new.json")["summary"] == {"cpu-fp16 project": {"passed": 1}}


def test_list_can_have_several_lines(project: Project) -> None:
    project.file("pytest.ini", "[pytest]\namp_device = cpu\namp_dtype =\n    bf16\n    fp16\n")
    project.write(test_it="def test_it(amp):\n    pass\n")
    result = project.here("--collect-only", "-q")
    assert ids(result) == ["cpu-bf16", "cpu-fp16"]


def test_ini_files_of_the_reference_are_valid(project: Project) -> None:
    blocks = re.findall(r"^```(?:toml|ini)\n# (\S+)\n(.*?)^```", INI, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in blocks] == ["pyproject.toml", "pytest.ini"]
    project.write(test_it="def test_it(amp):\n    pass")
    for name, text in blocks:
        path = project.file(name, text)
        result = project.here("--amp-dtype=bf16")
        assert result.ret == 0
        result.stdout.fnmatch_lines([f"amp: *device cpu,fake:cuda ({name})*"])
        path.unlink()
    assert (project.path / "changes.md").is_file()
    assert (project.path / "run.json").is_file()


@pytest.mark.parametrize("name", [*FILES, "override"])
def test_unknown_key_is_refused(project: Project, name: str) -> None:
    """Refuse the key, since pytest would warn and run on a different device than the requested one."""
    if name != "override":
        project.file(name, FILES[name].format(key="amp_devices", value="cuda"))
    line = refused(project.here(*(["-o", "amp_devices=cuda"] if name == "override" else [])))
    assert line.startswith(f"amp_devices ({'-o on the command line' if name == 'override' else name}): no such key; ")
    assert "amp_device, amp_dtype" in line


SPELLINGS = ("amp-device", "AMP_DEVICE", "Amp-Device", "amp device", "--amp-device", "ampdevice", "amp.device")


@pytest.mark.parametrize(
    ("name", "spelling", "workers"),
    [
        *((name, "amp-device", workers) for name in (*FILES, "older", "override") for workers in ("0", "2")),
        *(("pytest.toml", spelling, "0") for spelling in SPELLINGS[1:]),
        *(("override", spelling, "0") for spelling in SPELLINGS[1:]),
        ("pytest.ini", "amp device", "0"),
    ],
)
def test_misspelt_key_is_refused(project: Project, name: str, spelling: str, workers: str) -> None:
    """Refuse spellings that pytest ignores, such as the option's own: the run would not be the requested one."""
    project.write(test_it="def test_it(amp):\n    pass\n")
    file = "pyproject.toml" if name == "older" else name
    if name != "override":
        key = f'"{spelling}"' if file.endswith(".toml") else spelling
        project.file(file, (OLDER if name == "older" else FILES[name]).format(key=key, value="cpu"))
    overriding = ([f"--override-ini={spelling}=cpu"] if name == "override" else []) + ["-n", workers]
    where = "-o on the command line" if name == "override" else file
    assert refused(project.here(*overriding)) == f"{spelling} ({where}): no such key; expected amp_device"


def test_flag_in_the_spelling_of_its_option_is_refused(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass\n")
    line = refused(project.here("-o", "amp-strict=true"))
    assert line == "amp-strict (-o on the command line): no such key; expected amp_strict"


def test_key_with_a_similar_beginning_is_ignored(project: Project) -> None:
    project.file("pytest.ini", "[pytest]\namplitude = 3\nexample_path = x\n")
    project.write(test_it="def test_it(amp):\n    pass\n")
    assert project.here("--amp-device=cpu", "-Wignore").ret == 0


def test_key_of_another_plugin_is_accepted(project: Project) -> None:
    project.file("pytest.ini", "[pytest]\namp_level = O1\nfilterwarnings = error\n")
    project.write(
        conftest="def pytest_addoption(parser):\n    parser.addini('amp_level', 'x')\n",
        test_it="def test_it(amp, request):\n    assert request.config.getini('amp_level') == 'O1'\n",
    )
    assert project.here("--amp-device=cpu").ret == 0


@pytest.mark.parametrize("key", ["amp_record", "amp_baseline", "amp_report", "amp_known", "amp_floors"])
@pytest.mark.parametrize("value", ["n" * 300 + ".json", "no\\u0000name.json", "~nobody-of-that-name/a.json"])
def test_invalid_file_name_is_refused(project: Project, key: str, value: str) -> None:
    project.file("pyproject.toml", f'[tool.pytest]\n{key} = "{"json:" * (key == "amp_report")}{value}"\n')
    assert refused(project.here()).startswith(f"{key} (pyproject.toml): ")
