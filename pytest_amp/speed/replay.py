"""Device time: a step captured in a CUDA graph and replayed, so that the host has no part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure
from pytest_amp.quoted import quoted

#: Calls before the capture: libraries choose algorithms and take their workspaces, autograd makes its gradients.
WARM_UP = 3


def can_replay(device: Device) -> bool:
    """Whether ``device`` has graphs: CUDA, and ROCm, which torch calls cuda."""
    return device.type == "cuda" and hasattr(torch.cuda, "CUDAGraph")


def captured(call: Callable[[], object], device: Device, what: str) -> Callable[[], object]:
    """``call``, captured once in a graph of its own; the function returned replays it.

    What ``call`` makes (gradients, results) lives in the graph's own memory, and each replay writes it there
    anew; what it reads must stay where it is. Gradients are made within (``None`` before), or zeroed within.

    Raises AmpFailure, which says what to do, for what cannot be captured: reading a value on the host
    (``item``, ``if tensor``, a printed loss, GradScaler with an optimizer that is not fused), data copied from
    the host, memory that is freed or pinned on the way, a stream of its own.
    """
    side: Any = torch.cuda.Stream(device.torch_device)  # type: ignore[no-untyped-call,unused-ignore]
    side.wait_stream(torch.cuda.current_stream(device.torch_device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream(device.torch_device).wait_stream(side)
    device.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            call()
    except RuntimeError as error:
        raise AmpFailure(
            f"{what} cannot be captured in a CUDA graph, so its device time cannot be taken",
            label_before="rule",
            before="a captured step waits for nothing, and reads no value on the host",
            now=quoted(error),
            likely="item(), a condition on a tensor, data from the host, or a scaler with an optimizer that is not "
            'fused; take those out of the step, or time it eagerly: kind="step"',
        ) from error
    device.synchronize()
    replay: Callable[[], object] = graph.replay
    return replay
