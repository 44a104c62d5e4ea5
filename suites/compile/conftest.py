"""Fixtures of the compile family: a fresh compiler cache for each test, one search per session for inductor's tools.

pytest loads this file before it knows whether a test of the family runs: torch is imported in the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_amp.amp import SuiteAmp


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of inductor first and consecutively, so that only one of a few workers starts inductor."""
    here = [index for index, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    tests = [items[index] for index in here]
    tests.sort(key=lambda item: "needs" not in getattr(item, "fixturenames", ()))
    for index, item in zip(here, tests, strict=True):
        items[index] = item


@pytest.fixture(autouse=True)
def compiled_apart(request: pytest.FixtureRequest, amp: SuiteAmp) -> Iterator[None]:
    """Clear compiled code before and after the test."""
    from pytest_amp.compiled import folder, sandbox

    with sandbox(folder(request, amp.target)):
        yield


@pytest.fixture
def needs(amp: SuiteAmp, compiled_apart: None) -> Callable[[str], str]:  # noqa: ARG001  # the sandbox comes first
    """Return a back end by name once it has what it needs; without a compiler fail, or skip if that is allowed."""

    def look(backend: str) -> str:
        if backend == "inductor":
            amp.need_compiler()
        return backend

    return look
