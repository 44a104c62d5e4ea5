"""Single-threaded tests: operators are small here, and threads would cost more than they save."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """Run every test of this folder on one thread."""
