"""Tests of numerics draw numbers of their own: the same in each run, whichever tests ran before."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test begins with the same generator."""
    torch.manual_seed(0)
