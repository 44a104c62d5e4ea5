"""Regions of autocast that a program opens, with the line that opens each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_amp.lint.place import Place, calling_place, decorated_place
from pytest_amp.lint.program import RegionEvent
from pytest_amp.numerics.entered_regions import followed_autocast
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.precision import dtype_name

if TYPE_CHECKING:
    from pytest_amp.lint.recorder import Recorder


@contextlib.contextmanager
def followed_regions(recorder: Recorder) -> Iterator[None]:
    """Report each region entered inside the block, by ``with`` or by a decorator, to ``recorder``."""
    running: list[tuple[object, int]] = []

    def entering(region: Any, enter: Callable[[], Any], frame: FrameType) -> Any:
        outer = recorder.state()
        result = enter()
        place = decorated_place(frame) or calling_place()
        if region.device != recorder.device_type:
            recorder.program.foreign.append((region.device, place))
        else:
            regions = recorder.program.regions
            running.append((region, len(regions)))
            regions.append(
                RegionEvent(
                    number=len(recorder.program.calls),
                    until=-1,
                    place=place,
                    dtype=recorder.state(),
                    outer=outer,
                    module=recorder.module(),
                    in_loss=recorder.loss_depth > 0,
                    is_given=recorder.given_depth > 0,
                    depth=len(running),
                    off=_reason(region, place),
                )
            )
        return result

    def leaving(region: Any) -> None:
        while running:
            opened, index = running.pop()
            regions = recorder.program.regions
            regions[index] = replace(regions[index], until=len(recorder.program.calls))
            if opened is region:
                break

    with followed_autocast(entering, leaving):
        yield


def _reason(region: Any, place: Place) -> str:
    """Return the reason for which a region is disabled, as the program writes it."""
    dtype = getattr(region, "fast_dtype", None)
    if dtype is not None and dtype not in LOW:
        return f"dtype=torch.{dtype_name(dtype)}"
    return "torch.amp.custom_fwd(cast_inputs=...)" if place.is_torch else "enabled=False"
