"""Kernels of a call and their times, as torch's profiler sees them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from pytest_amp.torch_private.gone import PrivateApiGone


def kernel_times(call: Callable[[], object], synchronize: Callable[[], None]) -> dict[str, float]:
    """Return the seconds of the device's time by kernel for one ``call``; ``synchronize`` waits for it.

    Kernels of one name are added. The result is empty if the profiler sees no kernel: without CUPTI, or without the
    permission to use it. Raises PrivateApiGone without ``device_type`` or ``time_range`` of an event of
    ``torch.profiler``, which torch does not document for kernels; a failed check then names no kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings():
        # torch 2.11 warns at the end of each profile that a longer schedule would lose its events.
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            synchronize()
    seconds: dict[str, float] = {}
    for event in profiler.events() or ():
        try:
            is_kernel = getattr(event.device_type, "name", str(event.device_type)) == "CUDA"
            duration = float(event.time_range.elapsed_us()) / 1e6
        except AttributeError as error:
            raise PrivateApiGone(f"torch.profiler's {error.name} of an event") from None
        if is_kernel:
            seconds[event.name] = seconds.get(event.name, 0.0) + duration
    return seconds
