"""Checkout that the tool may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.project import ROOT
from tools.fingerprints.update import carried
from tools.release_support import pages
from tools.release_support.differences import CHANGES
from tools.release_support.faults import FILE as FAULTS
from tools.release_support.proposal import SPEC


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the files of the checkout that the tool changes."""
    root = tmp_path / "checkout"
    for name in (SPEC, CHANGES, FAULTS, pages.MATRIX, pages.CHANGELOG, pages.FINGERPRINT, pages.RULES, pages.UPGRADE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    fingerprints = root / "pytest_amp" / "fingerprint"
    fingerprints.mkdir()
    shutil.copyfile(carried(), fingerprints / "fingerprints.txt")
    return root
