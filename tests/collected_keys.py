"""Plugin that writes the keys of all collected tests into the file that the variable KEYS names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_amp.run.identity import INFO, key_of, target_of


def pytest_collection_finish(session: pytest.Session) -> None:
    keys = []
    for item in session.items:
        target = target_of(item)
        if target is not None:
            keys.append(key_of(item, item.stash[INFO], target))
    Path(os.environ["KEYS"]).write_text("\n".join(keys), encoding="utf-8")
