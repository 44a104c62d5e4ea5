"""Measurement of one cell of the study of transformers on one device: times, memory and shares of operators."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from pytest_amp.account import receive
from pytest_amp.cases import Attention, Decoder, DecoderSize
from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure
from pytest_amp.memory.peaks import Allocator
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.speed.clocks import Clock, clock_of
from pytest_amp.speed.environment import doubts_of
from pytest_amp.speed.replay import can_replay, captured
from pytest_amp.text.quoted import quoted
from tools.study.grid import SIZES, VOCABULARY, Cell

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ATTENTION = {"math": Attention.SOFTMAX, "sdpa": Attention.SDPA}
#: Operators that are matrix products.
PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
#: Seconds for which eager calls, and replays, are timed, and the largest number of calls.
BUDGET, CALLS = 0.25, 10

Result = dict[str, Any]


def measure(cell: Cell, device: Device) -> Result:
    """Measure ``cell``; running out of memory is a result, ``{"out_of_memory": True}``.

    ``step_time`` and ``device_time`` are seconds of one call, eagerly and replayed from a graph (None without one),
    ``first_calls`` those of the first three after the warm-up; ``peak`` is the peak of allocated memory, in bytes,
    above the value before; in float32, ``products`` and ``attention`` are their shares of the device's time
    (torch.profiler), which low precision can make faster. ``doubts`` are the reasons not to trust the times.
    """
    try:
        with float32_precision("ieee" if cell.precision == "fp32" else "tf32"):
            results = _measured(cell, device)
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return results | {"doubts": list(doubts_of(device))}


def _measured(cell: Cell, device: Device) -> Result:
    allocator = Allocator(device)
    # Each captured cell leaves workspaces of its stream allocated: 67 MB on an H200 (torch 2.11).
    memory = allocator.allocated if allocator.counts else 0
    work = _Work(cell, device)
    if allocator.counts:
        allocator.empty()
    with _warm_up(cell):
        for _ in range(2):
            work.call(low=cell.warm_up == "own")
    device.synchronize()
    clock = clock_of(device)
    first = clock.time(work.call, repeats=1, timings=3)
    step_time = _time(clock, work.call, first)
    results: Result = {"parameters": work.parameters, "first_calls": first, "step_time": step_time}
    if allocator.counts:
        results["peak"] = allocator.peaks[0] - memory
    if work.dtype is None:
        results |= _shares(work, device)
    try:
        replay = captured(work.call, device, str(cell)) if can_replay(device) else None
        results["device_time"] = _time(clock, replay, clock.time(replay, repeats=1, timings=2)) if replay else None
    except (AmpFailure, torch.OutOfMemoryError) as error:
        receive(error)
        # A graph has its own memory, and may not fit even though the step does.
        results |= {"device_time": None, "not_captured": quoted(error)}
    return results


@contextlib.contextmanager
def _warm_up(cell: Cell) -> Iterator[None]:
    with float32_precision("ieee") if cell.warm_up == "fp32" else contextlib.nullcontext():
        yield


def _time(clock: Clock, call: Callable[[], object], first: Sequence[float]) -> float:
    """Return the median of a few calls, each timed alone; for long calls, of the last calls in ``first``."""
    count = min(CALLS, int(BUDGET / max(min(first), 1e-6)))
    return statistics.median(clock.time(call, repeats=1, timings=count) if count > 1 else first[1:])


class _Work:
    """The model, its batch, its optimizer and scaler, and the timed call."""

    def __init__(self, cell: Cell, device: Device) -> None:
        """Seed torch, and create the tensors on the device itself."""
        layers, width, heads = SIZES[cell.size]
        size = DecoderSize(layers, width, heads, VOCABULARY)
        torch.manual_seed(0)
        self.cell, self.device, self.dtype = cell, device, DTYPES.get(cell.precision)
        with device.torch_device:
            self.model = Decoder(size, attention=ATTENTION[cell.attention])
            rows = torch.randint(VOCABULARY, (cell.batch, cell.context + 1))
        self.inputs, self.targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer: torch.optim.Optimizer | None = None
        if cell.mode == "step":
            graphs = can_replay(device)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=graphs, capturable=graphs)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=cell.precision == "fp16")

    def region(self, *, low: bool) -> AbstractContextManager[object]:
        """Return autocast's region if the cell has a low precision, else a null context."""
        return self.device.autocast(self.dtype) if self.dtype is not None and low else contextlib.nullcontext()

    def call(self, *, low: bool = True) -> object:
        """Run forward, or forward and backward, or both and the optimizer's step."""
        if self.cell.mode == "forward":
            with torch.no_grad():
                return self._loss(low=low)
        self.model.zero_grad(set_to_none=True)
        loss: Any = self.scaler.scale(self._loss(low=low))
        loss.backward()
        if self.optimizer is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def _loss(self, *, low: bool) -> Tensor:
        with self.region(low=low):
            logits = self.model(self.inputs)
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())


def _shares(work: _Work, device: Device) -> Result:
    """Measure the shares of products and of fused attention in the device's time."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as observed:
        work.call()
        device.synchronize()
    times = {
        event.key: float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        for event in observed.key_averages()
        if event.key.startswith("aten::")
    }
    whole = sum(times.values())
    if not whole:
        return {"products": None, "attention": None}
    products = sum(time for name, time in times.items() if name in PRODUCTS)
    attention = sum(time for name, time in times.items() if "_attention" in name)
    return {"products": products / whole, "attention": attention / whole}
