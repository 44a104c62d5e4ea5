"""Process of a group: ``python -m torch.distributed.run … -m pytest_amp.distributed.rank``.

It imports the requested modules, connects to the test process, joins the process group, and then answers requests until
the connection ends.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_amp.child_process.protocol import Parent, connect
from pytest_amp.text.quoted import quoted_with_place

if TYPE_CHECKING:
    import torch

#: Type of a program: a function of its rank and the request's settings, whose answer ``torch.save`` can store.
Program = Callable[["Rank", Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Rank:
    """Rank of a process: its number, the size of the group, and its device."""

    number: int
    size: int
    device: torch.device

    def autocast(self, dtype: torch.dtype, *, enabled: bool = True) -> AbstractContextManager[Any]:
        """Enter a region on the rank's device."""
        import torch

        return torch.autocast(self.device.type, dtype, enabled=enabled)


def main() -> None:
    """Serve the test process until it closes the connection."""
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    parent = connect(number)
    settings = parent.settings
    _show_where(Path(settings["folder"]) / f"stack{number}")
    sys.path[:] = settings["path"]
    try:
        parent.import_modules()
        rank = _joined(settings, number, size)
    except Exception as error:  # noqa: BLE001  # the test process reports any error
        parent.answer({"error": _described(error)})
        return
    _serve(parent, rank, int(settings["seed"]))


def _joined(settings: Mapping[str, Any], number: int, size: int) -> Rank:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device(settings["device"])
    if device.type != "cpu":
        device = torch.device(device.type, number)
        torch.get_device_module(device).set_device(number)
    dist.init_process_group(settings["backend"], timeout=timedelta(seconds=settings["timeout"]))
    return Rank(number, size, device)


def _serve(parent: Parent, rank: Rank, seed: int) -> None:
    import torch

    from pytest_amp.run.state_guard import StateGuard

    for request in parent.requests():
        guard = StateGuard(rank.device.type)
        try:
            torch.manual_seed(seed)
            answer: Mapping[str, Any] = {"value": _program(request["program"])(rank, request["settings"])}
        except Exception as error:  # noqa: BLE001  # the test process reports any error
            answer = {"error": _described(error)}
        leaked = guard.restore()
        if leaked and "error" not in answer:
            answer = {"error": "it left torch's state changed: " + ", ".join(leaked)}
        parent.answer(answer)
    # Exit at once: tearing down a process group takes seconds and reports nothing.
    os._exit(0)


def _program(name: str) -> Program:
    module, _, function = name.partition(":")
    program: Program = getattr(importlib.import_module(module), function)
    return program


def _described(error: BaseException) -> str:
    """Return the error in one line, with the last line of code outside of torch, which need not be importable."""
    torch = importlib.util.find_spec("torch")
    libraries = [Path(folder) for folder in (torch.submodule_search_locations or ())] if torch is not None else []
    return quoted_with_place(error, libraries, 600)


def _show_where(path: Path) -> None:
    """Write the stack on a signal from the test process, which works even in a rank that hangs in a collective."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=path.open("w", encoding="utf-8"), all_threads=False)


if __name__ == "__main__":
    main()
