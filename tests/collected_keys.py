"""Plugin that writes the keys of all collected tests into the file that the variable KEYS names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_amp.known.accepted import key_of_test
from pytest_amp.run.identity import INFO, own_parameters, target_of


def pytest_collection_finish(session: pytest.Session) -> None:
    keys = []
    for item in session.items:
        target = target_of(item)
        if target is not None:
            keys.append(key_of_test(item.stash[INFO], own_parameters(item, target)))
    Path(os.environ["KEYS"]).write_text("\n".join(keys), encoding="utf-8")
