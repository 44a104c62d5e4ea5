"""Names that a project imports from the package itself, and public attributes of the fixture ``amp``."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys

import pytest

import pytest_amp
from pytest_amp.amp import Amp, SuiteAmp
from tests.project import ROOT, Project

NAMES = ("Amp", "AmpFailure", "AmpUsageError", "Case", "read_record")


def loaded(program: str) -> set[str]:
    """Return the modules that a program of its own loads."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_package_loads_no_other_module() -> None:
    added = loaded("import pytest_amp") - loaded("")
    assert added == {"pytest_amp", "__future__"}


def test_names_of_failures_load_no_torch() -> None:
    modules = loaded("from pytest_amp import AmpFailure, AmpUsageError, Amp")
    assert "pytest" in modules
    assert not {"torch", "numpy"} & modules


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_the_object_of_its_module(name: str) -> None:
    value = getattr(pytest_amp, name)
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_public_names_are_in_all_and_typed() -> None:
    assert set(pytest_amp.__all__) == {*NAMES, "__version__"}
    assert set(NAMES) <= set(dir(pytest_amp))
    tree = ast.parse((ROOT / "pytest_amp" / "__init__.py").read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    assert {alias.asname for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names} == {*NAMES}
    with pytest.raises(AttributeError, match="module 'pytest_amp' has no attribute 'Nothing'"):
        _ = pytest_amp.Nothing  # type: ignore[attr-defined]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_public_attributes_of_amp_are_listed() -> None:
    assert public(SuiteAmp) - public(Amp) == {"conditions", "config", "missing", "need_compiler", "target"}
    kinds = ("casts", "compiled", "dtypes", "fp32", "gradients", "memory", "scaler", "speedup", "training")
    checks = {f"check_{kind}" for kind in kinds}
    of_the_test = {"autocast", "device", "dtype", "precision"}
    of_its_own = {"case", "check", "observe", "over_seeds", "record", "scaler_trace", "trace"}
    assert public(Amp) == checks | of_the_test | of_its_own


def test_fixture_has_no_attributes_beside_its_class(project: Project) -> None:
    project.write(
        test_it="""
from pytest_amp import Amp


def test_it(amp: Amp) -> None:
    assert isinstance(amp, Amp)
    assert not [name for name in vars(amp) if not name.startswith("_")]
"""
    )
    project.here("--amp-device=cpu", "--amp-dtype=bf16").assert_outcomes(passed=1)
