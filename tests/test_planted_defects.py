"""Each planted defect is detected by the test that is meant for it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp.devices import DeviceKind
from pytest_amp.record import read_record
from tests.planted.table import LONG_FAMILIES, Defect, all_defects, first_of_families, names
from tests.planting import PLUGIN, planting, run, selection, target
from tests.project import ROOT

DEFECTS = all_defects()
ON_CPU = [defect for defect in DEFECTS if defect.device != "cuda"]
FIRST = first_of_families(ON_CPU)
TIMEOUT = 300.0


@pytest.mark.planted
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(defect, id=defect.name, marks=[pytest.mark.one_per_family] if defect.name in FIRST else [])
        for defect in ON_CPU
    ],
)
def test_planted_defect_is_detected(defect: Defect, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    record = tmp_path / "record.json"
    arguments = [*PLUGIN, *planting(defect.name), "-p", "no:randomly", "-q", "-rfE", "--tb=no", *target(defect)]
    arguments += [*defect.options, selection(defect.test), f"--amp-record={record}"]
    status, text = run(arguments, tmp_path / "output", timeout=TIMEOUT, environment=environment)
    assert status == pytest.ExitCode.TESTS_FAILED, text
    failed = [line for line in text.splitlines() if re.match("FAILED |ERROR ", line)]
    assert any(defect.test in line for line in failed), text
    if defect.is_recorded:  # a comparison of this run with a healthy one reads it there
        assert any(defect.is_named_by(failure.key) for failure in read_record(record).failures), text


def test_planted_defects_have_unique_names() -> None:
    assert sorted(names()) == sorted(defect.name for defect in DEFECTS)


def test_quick_tests_have_one_defect_for_each_family_of_a_cpu() -> None:
    families = {defect.family for defect in ON_CPU if defect.name in FIRST}
    folders = {path.parent.name for path in (ROOT / "suites").glob("*/test_*.py")}
    assert folders - families == {"speed"}  # nothing is timed on a CPU
    assert len(FIRST) == len(families)


def test_planted_defects_name_existing_tests() -> None:
    tests = [test for defect in DEFECTS for test in (defect.test, defect.test_on("cuda")) if test is not None]
    missing = []
    for test in tests:
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
        if f"def {name.partition('[')[0]}(" not in source:
            missing.append(test)
    assert missing == []


def test_suite_files_all_have_a_planted_defect() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "suites").rglob("test_*.py")}
    assert files - {defect.test.partition("::")[0] for defect in DEFECTS} == set()


def test_defects_of_families_of_the_long_tier_run_in_it() -> None:
    packages = [f"suites.{path.parent.name}" for path in (ROOT / "suites").glob("*/__init__.py")]
    families = [importlib.import_module(package).FAMILY for package in packages]
    assert {family.name for family in families if DeviceKind.CPU in family.long_on} == LONG_FAMILIES.keys()
    of_kernels = [defect for defect in DEFECTS if defect.family in LONG_FAMILIES]
    assert of_kernels
    assert all("--amp-tier=all" in defect.options for defect in of_kernels)


def _pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "tests.planted", "--collect-only", "-q", *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "-p tests.planted: name a defect on the command line, with --plant NAME"),
        (
            ("--plant=scale_never_growz",),
            "--plant: no planted defect is named scale_never_growz: did you mean scale_never_grows?",
        ),
    ],
    ids=["none", "unknown"],
)
def test_run_without_a_planted_defect_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = _pytest(*arguments, "suites/scaler/test_order.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert message in done.stderr


def test_planting_imports_one_module_and_the_table_no_torch() -> None:
    program = (
        "import sys, tests.planted as planted; assert 'torch' not in sys.modules; planted.plant('scale_never_grows'); "
        "print(*sorted(name for name in sys.modules if name.startswith('tests.planted.')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tests.planted.scaler_update", "tests.planted.table"]
