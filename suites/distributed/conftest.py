"""Ranks for all tests of this family: started once for a device, and again only after one was lost.

pytest loads this file before it knows whether a test of the family runs: torch is imported in the fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_amp.child_process import plugin_modules

if TYPE_CHECKING:
    from pytest_amp.amp import SuiteAmp
    from pytest_amp.distributed import RankGroup


@pytest.fixture(scope="session")
def _groups() -> Iterator[dict[str, RankGroup]]:
    """Return the groups of this session, by device type."""
    groups: dict[str, RankGroup] = {}
    yield groups
    for group in groups.values():
        group.close()


@pytest.fixture
def ranks(amp: SuiteAmp, request: pytest.FixtureRequest, _groups: dict[str, RankGroup]) -> RankGroup:
    """Return two processes of one process group on the device under test."""
    from pytest_amp.distributed import RankGroup, unavailable

    kind = amp.device.type
    reason = unavailable(kind)
    if reason is not None:
        amp.missing("distributed", reason)
    if kind not in _groups:
        modules = plugin_modules(request.config)
        _groups[kind] = RankGroup(kind, modules=modules, path=sys.path, seed=amp.config.seed)
    return _groups[kind]
