"""Regions of autocast that a program opens, with the line that opens each."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pytest_amp.lint.place import calling_place, decorated_place
from pytest_amp.lint.program import RegionEvent

if TYPE_CHECKING:
    from pytest_amp.lint.recorder import Recorder


@contextlib.contextmanager
def followed_regions(recorder: Recorder) -> Iterator[None]:
    """Report each region entered inside the block, by ``with`` or by a decorator, to ``recorder``."""
    region: Any = torch.autocast
    enter, leave = region.__enter__, region.__exit__
    running: list[tuple[object, int]] = []

    def entering(self: Any) -> Any:
        outer = recorder.state()
        result = enter(self)
        if self.device == recorder.device_type:
            regions = recorder.program.regions
            running.append((self, len(regions)))
            regions.append(
                RegionEvent(
                    number=len(recorder.program.calls),
                    until=-1,
                    place=decorated_place(sys._getframe(1)) or calling_place(),  # noqa: SLF001  # as in place
                    dtype=recorder.state(),
                    outer=outer,
                    module=recorder.module(),
                    in_loss=recorder.loss_depth > 0,
                    is_given=recorder.given_depth > 0,
                    depth=len(running),
                )
            )
        return result

    def leaving(self: Any, *error: Any) -> Any:
        while running:
            opened, index = running.pop()
            regions = recorder.program.regions
            regions[index] = replace(regions[index], until=len(recorder.program.calls))
            if opened is self:
                break
        return leave(self, *error)

    region.__enter__, region.__exit__ = entering, leaving
    try:
        yield
    finally:
        region.__enter__, region.__exit__ = enter, leave
