"""The wheel and the source distribution: their files; the suites in the wheel are those of the checkout."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from pytest_amp.record import read_record
from tests.project import INSTALLED, ROOT

#: Files of the packages in git, except those that only a checkout needs.
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("pytest_amp", "suites", "docs/findings")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
)


def _in_the_package(folder: re.Match[str]) -> str:
    return f"pytest_amp/{folder[1].removeprefix('docs/')}/"


LOADED = () if INSTALLED else ("-p", "pytest_amp.plugin")


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_has_exactly_the_files_of_the_packages(wheel: Path) -> None:
    expected = {re.sub("^(suites|docs/findings)/", _in_the_package, name) for name in SOURCES}
    names = {name for name in _names(wheel) if ".dist-info/" not in name}
    assert names == expected
    assert {
        "pytest_amp/py.typed",
        "pytest_amp/findings/low-norm.md",
        "pytest_amp/rules/spec.toml",
        "pytest_amp/suites/README.md",
    } <= names


def test_wheel_needs_nothing_of_the_checkout() -> None:
    """Compare imports and programs named in the sources with what a wheel has: neither ``tools`` nor ``tests``."""
    named = {}
    for name in SOURCES:
        if name.endswith(".py"):
            source = (ROOT / name).read_text(encoding="utf-8")
            actual = re.findall(r"^ *(?:from|import) ((?:tools|tests)\b[.\w]*)", source, re.MULTILINE)
            actual += re.findall(r"(?<!in a checkout: )python -m ((?:tools|tests)\.[.\w]*)", source)
            named[name] = actual
    assert {name: actual for name, actual in named.items() if actual} == {}


def test_metadata_has_extras_and_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        (entry,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        metadata = email.message_from_bytes(archive.read(name))
        entries = archive.read(entry).decode()
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("Provides-Extra", ())) >= {"all", "gpu", "html", "suites", "sweep"}
    assert "amp = pytest_amp.plugin" in entries
    assert "pytest-amp = pytest_amp.cli:main" in entries


def test_extras_named_in_messages_exist(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        extras = set(email.message_from_bytes(archive.read(name)).get_all("Provides-Extra", ()))
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pytest_amp").rglob("*.py"))
    sources += "".join(path.read_text(encoding="utf-8") for path in (ROOT / "suites").rglob("*.py"))
    named = set(re.findall(r'extra="(\w+)"', sources)) | set(re.findall(r"pytest-amp\[(\w+)\]", sources))
    assert named
    assert named <= extras


def test_source_distribution_has_the_files_of_its_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(SOURCES) <= names
    for name in ("tests/conftest.py", "tests/planted/table.py", "docs/reference/hooks.md", "examples/test_decoder.py"):
        assert name in names
    for name in ("Makefile", "constraints.txt", "conftest.py", "mkdocs.yml", "CHANGELOG.md", "LICENSE", ".ci/run"):
        assert name in names
    assert any(name.startswith(".github/workflows/") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith((".gpu", ".git/", ".venv"))]


def test_wheel_of_the_source_distribution_equals_that_of_the_checkout(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Compare byte by byte: a build depends on its sources alone, not on the time or the folder."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--wheel-dir", str(tmp_path), str(sdist)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (actual,) = tmp_path.glob("*.whl")
    assert sorted(_names(actual)) == sorted(_names(wheel))
    assert actual.read_bytes() == wheel.read_bytes()


def _run(arguments: list[str], path: Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    environment |= {"PYTHONPATH": str(path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def _called(command: list[str], path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def _ids(output: str) -> list[str]:
    """Return ids from the family on: the part before it is the folder's path from pytest's root."""
    return sorted(re.findall(r"^(?:\S*/)?(\w+/test_\w+\.py::.*)$", output, re.MULTILINE))


def test_installed_suites_have_the_ids_of_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    """Collect each family in an empty folder; torch is imported twice, and no check runs."""
    arguments = ["--amp-device=cpu", "--amp-dtype=bf16", "--collect-only"]
    installed = _run(["--pyargs", "pytest_amp.suites", *arguments], unpacked, tmp_path)
    expected = _ids(_run([*LOADED, "suites", *arguments], ROOT, ROOT))
    assert len(expected) > 3000
    assert _ids(installed) == expected


@pytest.mark.parametrize("where", ["rules/test_joins", "scaler/test_scale", "semantics/test_region"])
def test_installed_suites_record_the_keys_of_the_checkout(where: str, unpacked: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "installed.json", tmp_path / "checkout.json"
    common = ["--amp-device=cpu", "--amp-dtype=bf16"]
    _run(
        ["--pyargs", f"pytest_amp.suites.{where.replace('/', '.')}", *common, f"--amp-record={first}"],
        unpacked,
        tmp_path,
    )
    _run([*LOADED, str(ROOT / "suites" / f"{where}.py"), *common, f"--amp-record={second}"], ROOT, ROOT)
    observed = [
        {observation.key: observation.value for observation in read_record(record).observations}
        for record in (first, second)
    ]
    assert observed[0] == observed[1]


@pytest.mark.parametrize("program", ["pytest-amp", "module"])
def test_installed_command_runs(program: str, unpacked: Path, tmp_path: Path) -> None:
    """Call the command by either name; the doctor tells how to run the suites of a wheel."""
    command = [str(unpacked / "bin" / program)] if program == "pytest-amp" else [sys.executable, "-m", "pytest_amp"]
    for arguments, output in (
        (["rules", "softmax.int", "--device=cuda"], "fp32_set_opt_dtype"),
        (["finding", "low-norm"], "# `low-norm`: "),
        (["doctor"], "  pytest --pyargs pytest_amp.suites: "),
    ):
        done = _called([*command, *arguments], unpacked, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert output in done.stdout


def test_installed_commands_all_have_help(unpacked: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_amp"]
    names = re.findall(r"^ {4}(\w+)", _called([*command, "--help"], unpacked, tmp_path).stdout, re.MULTILINE)
    assert {"init", "finding", "rules", "show", "diff", "doctor", "calibrate", "bisect"} <= {*names}
    for name in names:
        done = _called([*command, name, "--help"], unpacked, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_calibration_leaves_the_installed_package_unchanged(unpacked: Path, tmp_path: Path) -> None:
    floors = unpacked / "pytest_amp" / "floors" / "floors.json"
    before = floors.read_bytes()
    command = [sys.executable, "-m", "pytest_amp", "calibrate", "--from", "a.json", "b.json", "c.json"]
    done = _called(command, unpacked, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: argument --to: nothing; expected a file of yours, for pytest --amp-floors=FILE" in done.stderr
    assert floors.read_bytes() == before
    assert list(tmp_path.iterdir()) == []
