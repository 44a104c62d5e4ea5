"""Recompilation: a region costs one compilation for each ambient state, and none when a state occurs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .programs import OTHER, ambient


class _Counting:
    """Back end for torch.compile that runs the graph as it is, and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph_module: Any, _inputs: object) -> Callable[..., Any]:
        """Count one more graph."""
        self.graphs += 1
        run: Callable[..., Any] = graph_module.forward
        return run


def _product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def _expect_graphs(amp: SuiteAmp, fact: str, count: int, expected: int) -> None:
    amp.observe(fact, count, kind="count")
    if count != expected:
        raise AmpFailure(
            f"{fact} on {amp.target.id}: {count} compilations, it should be {expected}",
            label_before="rule",
            before="one for each autocast state in which the function is called",
            now=f"{count} on torch {torch.__version__}",
            likely="a guard on the autocast state is missing (too few), or on what changes with each region (too many)",
        )


def test_one_compilation_for_each_ambient_state(amp: SuiteAmp) -> None:
    """Call in no region, in this dtype and in the other, each of them three times."""
    backend = _Counting()
    compiled = torch.compile(_product, backend=backend, fullgraph=True)
    x = torch.randn(4, 4, device=amp.device.torch_device)
    for _ in range(3):
        for kind in ("none", "low", "other"):
            with ambient(amp, kind):
                compiled(x)
    _expect_graphs(amp, "three ambient states", backend.graphs, 3)


def test_a_region_that_is_entered_again_compiles_nothing(amp: SuiteAmp) -> None:
    """Ten training steps, each in a region of its own, compile once."""
    backend = _Counting()
    model = nn.Linear(8, 8).to(amp.device.torch_device)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(10):
        with amp.autocast():
            loss = compiled(torch.randn(4, 8, device=amp.device.torch_device)).float().square().mean()
        loss.backward()
        model.zero_grad()
    _expect_graphs(amp, "ten steps", backend.graphs, 1)


def test_a_region_inside_compiles_once(amp: SuiteAmp) -> None:
    """A region inside compiles once, whether the object is the same one each time or a new one."""
    backend = _Counting()
    device_type, dtype = amp.device.type, amp.dtype

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type, dtype):
            return x @ x

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for _ in range(4):
        compiled(torch.randn(4, 4, device=amp.device.torch_device))
    _expect_graphs(amp, "a region inside", backend.graphs, 1)


def test_new_sizes_in_a_region_compile_no_more_than_outside(amp: SuiteAmp) -> None:
    """Dynamic shapes: varying sizes compile to one graph, in a region as in none."""
    graphs = {}
    for kind in ("none", "low"):
        torch.compiler.reset()
        backend = _Counting()
        compiled = torch.compile(lambda x, y: torch.tanh(x @ y), backend=backend, fullgraph=True, dynamic=True)
        with ambient(amp, kind):
            for rows in (4, 5, 7, 9):
                y = torch.randn(8, 8, device=amp.device.torch_device)
                compiled(torch.randn(rows, 8, device=amp.device.torch_device), y)
        graphs[kind] = backend.graphs
    _expect_graphs(amp, "varying sizes", graphs["low"], 1)
    assert graphs["none"] == 1


@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])
def test_training_and_evaluation_compile_twice(amp: SuiteAmp, *, enabled: bool) -> None:
    """Evaluation between trainings, in a region as in a disabled one, takes two graphs, not one for each change."""
    backend = _Counting()
    model = nn.Linear(8, 8).to(amp.device.torch_device)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    batch = torch.randn(4, 8, device=amp.device.torch_device)
    for _ in range(3):
        with amp.autocast(enabled=enabled):
            compiled(batch).float().square().mean().backward()
        with amp.autocast(enabled=enabled), torch.no_grad():
            compiled(batch)
    _expect_graphs(amp, f"training and evaluation, {'enabled' if enabled else 'disabled'}", backend.graphs, 2)


class _Held:
    """Holder of a region that a function reads from an attribute, for example of a configuration."""

    region: torch.autocast


def _in_held_region(x: torch.Tensor) -> torch.Tensor:
    with _Held.region:
        return x @ x


def test_an_equal_region_object_compiles_nothing(amp: SuiteAmp) -> None:
    """Replace the compiled region by a new one with the same arguments."""
    backend = _Counting()
    compiled = torch.compile(_in_held_region, backend=backend, fullgraph=True)
    for _ in range(3):
        _Held.region = torch.autocast(amp.device.type, amp.dtype)
        compiled(torch.randn(4, 4, device=amp.device.torch_device))
    _expect_graphs(amp, "equal region objects", backend.graphs, 1)


def test_another_region_object_is_followed(amp: SuiteAmp) -> None:
    """Replace the region by one of the other dtype, then by the first one again."""
    compiled = torch.compile(_in_held_region, backend="eager", fullgraph=True)
    counts = []
    regions = [torch.autocast(amp.device.type, dtype) for dtype in (amp.dtype, OTHER[amp.dtype])]
    for region in (*regions, regions[0]):
        _Held.region = region
        counts.append(compiled(torch.randn(4, 4, device=amp.device.torch_device)).dtype)
    assert counts == [amp.dtype, OTHER[amp.dtype], amp.dtype]
