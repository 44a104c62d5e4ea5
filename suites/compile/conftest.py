"""Each test compiles anew, in a folder of this session; what inductor needs is looked for once, and not in each worker.

pytest loads this file before it knows whether a test of the family runs: torch is imported in the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_amp.amp import Amp


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of inductor come first: one after the other, so that one worker of a few has them all and starts it."""
    here = [index for index, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    tests = [items[index] for index in here]
    tests.sort(key=lambda item: "needs" not in getattr(item, "fixturenames", ()))
    for index, item in zip(here, tests, strict=True):
        items[index] = item


@pytest.fixture(autouse=True)
def compiled_apart(request: pytest.FixtureRequest, amp: Amp) -> Iterator[None]:
    """Nothing is left of what an earlier test compiled, and nothing is left behind."""
    from pytest_amp.compiled import folder, sandbox

    with sandbox(folder(request, amp.target)):
        yield


@pytest.fixture
def needs(amp: Amp, compiled_apart: None) -> Callable[[str], str]:  # noqa: ARG001  # the sandbox comes first
    """A back end by name, once it has what it needs: without a compiler the test is red, or skipped where allowed."""

    def look(backend: str) -> str:
        if backend == "inductor":
            amp.need_compiler()
        return backend

    return look
