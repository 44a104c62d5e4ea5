"""Operators are small here: threads would cost more than they do."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """Every test of this folder."""
