"""Capturing a CUDA graph: no garbage is collected meanwhile."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from pytest_amp.speed.replay import capturing


class EarlierGraph:
    """A graph of an earlier test, in a reference cycle as a traceback makes one."""

    def __init__(self) -> None:
        """Refer to itself."""
        self.cycle = self


@pytest.fixture(autouse=True)
def _graph_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    yield
    gc.enable()


def _capture() -> list[bool]:
    enabled = []
    with capturing(object()):  # type: ignore[arg-type]
        enabled.append(gc.isenabled())
    return [*enabled, gc.isenabled()]


def test_a_capture_frees_earlier_graphs_first_and_none_meanwhile() -> None:
    """A graph that is freed during a capture makes the capture invalid."""
    earlier = weakref.ref(EarlierGraph())
    assert _capture() == [False, True]
    assert earlier() is None


def test_a_capture_leaves_a_disabled_collector_disabled() -> None:
    """The collector is put back as it was."""
    gc.disable()
    assert _capture() == [False, False]


def test_a_capture_that_fails_enables_the_collector_again() -> None:
    """An error inside goes on, and the collector works again."""
    with pytest.raises(RuntimeError, match="not permitted"), capturing(object()):  # type: ignore[arg-type]
        raise RuntimeError("operation not permitted when stream is capturing")
    assert gc.isenabled()
