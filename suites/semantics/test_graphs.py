"""CUDA graphs and the cast cache: replays use the current weights, or the capture is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.speed.replay import capturing

pytestmark = pytest.mark.amp(devices=["cuda"])  # a CPU has no graphs to capture


def _captured(
    function: Callable[[], torch.Tensor], warm_up: Callable[[], object]
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Return the graph of ``function`` and its result; ``warm_up`` runs before, on a side stream, as torch requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        result = function()
    return graph, result


@pytest.fixture
def layer(amp: SuiteAmp) -> nn.Linear:
    """Return a layer with one weight and no bias."""
    return nn.Linear(64, 32, bias=False).to(amp.device.torch_device)


@pytest.fixture
def batch(amp: SuiteAmp) -> torch.Tensor:
    """Return an input of the layer, which graphs read in place."""
    return torch.randn(16, 64, device=amp.device.torch_device)


def _manual_result(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return functional.linear(batch.to(amp.dtype), layer.weight.to(amp.dtype))


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_a_region_inside_a_capture_casts_at_each_replay(
    amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, *, cache: bool
) -> None:
    """The cast is part of the graph: a changed weight is read again."""

    def forward() -> torch.Tensor:
        with torch.no_grad(), amp.autocast(cache_enabled=cache):
            layer(batch)
            return layer(batch)  # type: ignore[no-any-return]

    graph, result = _captured(forward, forward)
    for _ in range(3):
        with torch.no_grad():
            layer.weight.add_(0.25)
            batch.mul_(1.5)
        graph.replay()
        assert result.dtype is amp.dtype
        assert torch.equal(result, _manual_result(amp, layer, batch))


@pytest.mark.parametrize(
    "cache",
    [True, False],
    ids=["cache", "no cache"],
)
def test_a_capture_inside_a_region_casts_at_each_replay(
    amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, *, cache: bool
) -> None:
    """With the cache every replay would use a copy that was made before."""

    def forward() -> torch.Tensor:
        return layer(batch)  # type: ignore[no-any-return]

    with torch.no_grad(), amp.autocast(cache_enabled=cache):
        graph, result = _captured(forward, forward)
        layer.weight.add_(0.25)
        graph.replay()
        actual = result.clone()
    assert torch.equal(actual, _manual_result(amp, layer, batch))


@pytest.mark.parametrize(
    "cache",
    [True, False],
    ids=["cache", "no cache"],
)
def test_a_region_goes_on_after_a_capture(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, *, cache: bool) -> None:
    """Captured operators do not run: a copy from the capture has no values until the graph is replayed."""

    def warm_up() -> torch.Tensor:
        return _manual_result(amp, layer, batch)

    with torch.no_grad(), amp.autocast(cache_enabled=cache):
        _captured(lambda: layer(batch), warm_up)
        actual = layer(batch)
    assert torch.equal(actual, _manual_result(amp, layer, batch))


def test_make_graphed_callables_refuses_the_cache(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """Refuse with a message that says what to do (torch/cuda/graphs.py)."""
    with amp.autocast(), pytest.raises(RuntimeError, match="cache_enabled=False"):
        torch.cuda.make_graphed_callables(layer, (batch,))


def _model(amp: SuiteAmp) -> nn.Module:
    torch.manual_seed(amp.config.seed)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)).to(amp.device.torch_device)


def _trained(
    amp: SuiteAmp, model: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor
) -> list[float]:
    """Train five steps; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        with amp.autocast(cache_enabled=False):
            loss = forward(batch * (1 + step)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_a_graphed_model_trains_as_the_eager_one(amp: SuiteAmp, batch: torch.Tensor) -> None:
    """``make_graphed_callables`` in a region without cache: five steps, the same losses and weights."""
    eager = _model(amp)
    model = copy.deepcopy(eager)
    with amp.autocast(cache_enabled=False):
        graphed: Any = torch.cuda.make_graphed_callables(model, (batch.clone(),))  # it keeps and writes it
    losses = _trained(amp, model, graphed, batch)
    expected = _trained(amp, eager, eager, batch)
    assert losses == expected
    for left, right in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_captured_step_trains_as_the_eager_one(amp: SuiteAmp, batch: torch.Tensor) -> None:
    """Capture forward, backward and the optimizer in one graph, with the region and its cache inside."""
    eager = _model(amp)
    model = copy.deepcopy(eager)
    optimizers = {m: torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager)}

    def step(trained: nn.Module) -> torch.Tensor:
        optimizers[trained].zero_grad()
        with amp.autocast():
            loss = trained(batch).float().square().mean()
        loss.backward()
        optimizers[trained].step()
        return loss.detach()  # type: ignore[no-any-return]

    expected = [step(eager).item() for _ in range(6)]
    # The warm-up takes three steps; a capture takes none.
    graph, loss = _captured(lambda: step(model), lambda: step(model))
    actual = []
    for _ in range(3):
        graph.replay()
        actual.append(loss.item())
    assert actual == expected[3:]
    for left, right in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(left, right)
