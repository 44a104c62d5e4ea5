"""Threads of a program in which autocast is off, although the recorded thread is in a region."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn.modules import module as module_hooks

from pytest_amp.lint.place import calling_place

if TYPE_CHECKING:
    from pytest_amp.lint.recorder import Recorder


@contextlib.contextmanager
def followed_threads(recorder: Recorder) -> Iterator[None]:
    """Note inside the block each layer that another thread calls without a region, in ``recorder.program.threads``.

    The state of autocast belongs to a thread. Hooks of modules are those of the process.
    """
    recorded = threading.get_ident()

    def enter(module: torch.nn.Module, _inputs: object) -> None:
        name = recorder.names.get(id(module))
        if threading.get_ident() == recorded or name is None or recorder.is_again or recorder.state() is not None:
            return
        opened = [region for region in recorder.program.regions if region.until < 0]
        if not opened or opened[-1].dtype is None:
            return
        if any(weight.ndim > 1 for weight in module.parameters(recurse=False)):
            recorder.program.threads.append((calling_place(), name))

    handle = module_hooks.register_module_forward_pre_hook(enter)
    try:
        yield
    finally:
        handle.remove()
