"""Device time: a step captured in a CUDA graph and replayed, without overhead of the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure
from pytest_amp.text.quoted import quoted

#: Number of warm-up calls before the capture, in which libraries select algorithms and allocate workspaces, and
#: autograd creates gradients.
WARM_UP = 3


def can_replay(device: Device) -> bool:
    """Return whether ``device`` has graphs: CUDA, and ROCm, which torch calls cuda."""
    return device.type == "cuda" and hasattr(torch.cuda, "CUDAGraph")


def captured(call: Callable[[], object], device: Device, what: str) -> Callable[[], object]:
    """Capture ``call`` once in its own graph; return a function that replays it.

    Tensors that ``call`` creates (gradients, results) are in the graph's own memory, and each replay overwrites them;
    tensors that it reads must keep their memory. Gradients are created inside (``None`` before), or zeroed inside.
    Raises AmpFailure, with advice, for a call that cannot be captured: one that reads a value on the host (``item``,
    ``if tensor``, a printed loss, GradScaler with an optimizer that is not fused), copies data from the host, frees or
    pins memory, or uses a stream of its own.
    """
    side = _warmed_up(call, device)
    try:
        return _replay(call, device, side)
    except RuntimeError as error:
        raise AmpFailure(
            f"{what} cannot be captured in a CUDA graph, so its device time cannot be taken",
            label_before="rule",
            before="a captured step waits for nothing, and reads no value on the host",
            now=quoted(error),
            likely="item(), a condition on a tensor, data from the host, or a scaler with an optimizer that is not "
            'fused; take those out of the step, or time it eagerly: kind="step"',
        ) from error


def replayed(call: Callable[[], object], device: Device) -> Callable[[], object]:
    """Capture ``call``, as ``captured`` does; raises torch's RuntimeError if it cannot be captured."""
    return _replay(call, device, _warmed_up(call, device))


def _warmed_up(call: Callable[[], object], device: Device) -> Any:
    """Run ``call`` on a stream of its own; return the stream."""
    side: Any = torch.cuda.Stream(device.torch_device)  # type: ignore[no-untyped-call,unused-ignore]
    side.wait_stream(torch.cuda.current_stream(device.torch_device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream(device.torch_device).wait_stream(side)
    device.synchronize()
    return side


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: Any = None) -> Iterator[None]:
    """Capture what runs inside into ``graph``, on ``stream`` or on one that torch makes; collect no garbage meanwhile.

    A graph that is freed while another is captured makes that capture invalid (``cudaErrorStreamCaptureInvalidated``).
    Earlier graphs in reference cycles, such as those of a traceback, are therefore freed before; torch itself collects
    garbage there only by ``torch.compiler.config.force_cudagraph_gc``.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=stream):
            yield
    finally:
        if enabled:
            gc.enable()


def _replay(call: Callable[[], object], device: Device, side: Any) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, side):
        call()
    device.synchronize()
    return _Replay(graph, call)


class _Replay:
    """Captured call. It keeps the call, and so the tensors that the graph reads: the graph itself keeps no memory."""

    def __init__(self, graph: torch.cuda.CUDAGraph, call: Callable[[], object]) -> None:
        """Keep both."""
        self._replay: Callable[[], object] = graph.replay
        self._call = call

    def __call__(self) -> None:
        """Replay the graph."""
        self._replay()
