"""Causes that invalidate a GPU's timings: heat, and other users' processes; on a simulated card."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from pytest_amp.devices import find_device, nvml
from pytest_amp.devices.accelerator import CudaDevice
from pytest_amp.speed import environment
from pytest_amp.speed.environment import doubts_of

ME = os.getpid()
#: A process that is not a child of this one.
STRANGER = 1


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, ...]]:
    """Return the doubts about a card with these processes, and these losses of its queue at first and again."""

    def doubts(
        there: tuple[int, ...] | None,
        *,
        lost: float = 0.0,
        again: float | None = None,
        throttled: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(environment, "uuid_of", lambda _: "it")
        looks = itertools.chain([lost], itertools.repeat(lost if again is None else again))
        monkeypatch.setattr(environment, "interrupted", lambda _: next(looks))
        monkeypatch.setattr(nvml, "processes", lambda _: there)
        monkeypatch.setattr(nvml, "throttled", lambda _: throttled)
        return doubts_of(CudaDevice())

    return doubts


def test_own_process_alone_raises_no_doubt(card: Callable[..., tuple[str, ...]]) -> None:
    assert card((ME,)) == ()


def test_process_hidden_from_the_driver_raises_doubt(card: Callable[..., tuple[str, ...]]) -> None:
    """Simulate a process in another container."""
    assert "lost between short kernels" in card((ME,), lost=0.5)[0]


def test_foreign_process_raises_doubt(card: Callable[..., tuple[str, ...]]) -> None:
    assert card((ME, STRANGER)) == ("1 other process on this GPU",)
    assert card((ME, STRANGER, STRANGER)) == ("2 other processes on this GPU",)


def test_single_interruption_raises_no_doubt(card: Callable[..., tuple[str, ...]]) -> None:
    assert card((ME,), lost=0.5, again=0.0) == ()


def test_idle_child_process_raises_no_doubt(card: Callable[..., tuple[str, ...]]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert card((ME, child.pid)) == ()
        (actual,) = card((ME, child.pid), lost=0.4)
        assert actual == "40% of the time is lost between short kernels: another process computes on this GPU"
        child.communicate(b"\n")


@pytest.mark.parametrize("there", [None, (), (STRANGER,)])
def test_launch_queue_decides_if_the_driver_lacks_this_process(
    card: Callable[..., tuple[str, ...]], there: tuple[int, ...] | None
) -> None:
    assert card(there) == ()
    assert "lost between short kernels" in card(there, lost=0.4)[0]


def test_slowdown_of_the_driver_raises_doubt(card: Callable[..., tuple[str, ...]]) -> None:
    assert card((ME,), throttled=("hardware thermal slowdown",)) == ("the driver reports hardware thermal slowdown",)


def test_cpu_raises_no_doubt() -> None:
    assert doubts_of(find_device("cpu")) == ()
