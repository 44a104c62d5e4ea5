"""Lifetime of the tensors that a region retains, and validity of a weight's cached copy after changes to the weight."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.torch_private import live_storages

from .users import LAYERS


@pytest.fixture
def layer(amp: SuiteAmp) -> nn.Linear:
    """Return a layer with one weight and no bias."""
    return nn.Linear(8, 24, bias=False).to(amp.device.torch_device)


@pytest.fixture
def batch(amp: SuiteAmp) -> torch.Tensor:
    """Return an input of the layer."""
    return torch.randn(4, 8, device=amp.device.torch_device)


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("kind", LAYERS)
def test_memory_does_not_grow_over_repeated_forwards(amp: SuiteAmp, kind: str, mode: str) -> None:
    """Within one region, and over many, as much memory is alive after the sixth forward as after the second."""
    build, shape = LAYERS[kind]
    layer, x = build().to(amp.device.torch_device), torch.randn(shape, device=amp.device.torch_device)
    modes = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with live_storages(given=layer.parameters()) as alive, modes[mode]():
        with amp.autocast():
            layer(x)
            layer(x)
            second = alive()
            for _ in range(4):
                layer(x)
            sixth = alive()
        left = alive()
        for _ in range(3):
            with amp.autocast():
                layer(x)
        after = alive()
    amp.observe(f"bytes cached, {kind}, {mode}", sum(second), kind="count")
    if sixth != second or left or after:
        raise AmpFailure(
            f"{kind} under {mode} keeps memory on {amp.target.id}",
            label_before="rule",
            before=f"{second} bytes in the region, none after it",
            now=f"{sixth} after six forwards, {left} after the region, {after} after three more regions",
            likely="the cast cache takes in activations, or outlives its region (pytorch/pytorch#48049)",
        )


#: Functions of an input and a weight, with their casts by autocast and as manual casts.
SAVED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "linear": ((4, 8), (16, 8), functional.linear),
    "matmul": ((2, 4, 8), (8, 16), torch.matmul),
    "mm": ((4, 8), (8, 16), torch.mm),
    "bmm": ((3, 4, 8), (3, 8, 16), torch.bmm),
    "conv1d": ((2, 3, 8), (4, 3, 3), functional.conv1d),
    "conv2d": ((2, 3, 8, 8), (4, 3, 3, 3), functional.conv2d),
    "conv3d": ((2, 3, 5, 5, 5), (4, 3, 3, 3, 3), functional.conv3d),
    "conv_transpose2d": ((2, 3, 8, 8), (3, 4, 3, 3), functional.conv_transpose2d),
    "attention": ((1, 2, 6, 8), (1, 2, 6, 8), lambda x, w: functional.scaled_dot_product_attention(x, w, w)),
    "gelu of linear": ((4, 8), (16, 8), lambda x, w: functional.gelu(functional.linear(x, w))),
    "linear twice": ((4, 8), (8, 8), lambda x, w: functional.linear(functional.linear(x, w), w)),
}


@pytest.mark.parametrize("kind", SAVED)
def test_what_is_kept_for_backward_is_what_casts_by_hand_keep(amp: SuiteAmp, kind: str) -> None:
    """Compare the bytes of each saved tensor: no second copy of an input, no float32 copy of an activation."""
    inputs, weights, function = SAVED[kind]
    device = amp.device.torch_device
    x = torch.randn(inputs, device=device, requires_grad=True)
    weight = torch.randn(weights, device=device, requires_grad=True)
    with live_storages() as alive:
        result = function(x.to(amp.dtype), weight.to(amp.dtype))
        manual = alive()
        del result
        assert alive() == []
        with amp.autocast():
            result = function(x, weight)
        actual = alive()
        del result
        assert alive() == []
    amp.observe(f"bytes kept for backward, {kind}", sum(actual), kind="count")
    assert actual == manual, f"autocast's {kind} keeps {actual} bytes, manual casts keep {manual}"


def test_nothing_of_a_region_stays_alive(amp: SuiteAmp, batch: torch.Tensor) -> None:
    """After the region a deleted model is freed, weights and cached copies alike, also after no_grad inside it."""
    layer = nn.Linear(8, 24).to(amp.device.torch_device)
    weight = weakref.ref(layer.weight)
    with amp.autocast():
        with torch.no_grad():
            layer(batch)
        layer(batch)
        del layer
    gc.collect()
    assert weight() is None, "the cast cache keeps a weight alive after its region"


@pytest.mark.parametrize("way", ["clear", "no cache"])
def test_an_update_inside_a_region_can_be_seen(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, way: str) -> None:
    """Clear the cache, or disable it."""
    with amp.autocast(cache_enabled=way == "clear"):
        layer(batch)
        with torch.no_grad():
            layer.weight.add_(1)
        if way == "clear":
            torch.clear_autocast_cache()
        actual = layer(batch)
    expected = functional.linear(batch.to(amp.dtype), layer.weight.detach().to(amp.dtype))
    assert torch.equal(actual, expected)


def _step(layer: nn.Linear) -> None:
    layer.weight.grad = torch.ones_like(layer.weight)
    torch.optim.SGD(layer.parameters(), lr=1.0).step()


def _data(layer: nn.Linear) -> None:
    layer.weight.data = layer.weight.data + 1


def _load(layer: nn.Linear) -> None:
    layer.load_state_dict({"weight": layer.weight.detach() + 1})


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda layer: layer.weight.add_(1),
    "copy_": lambda layer: layer.weight.copy_(layer.weight + 1),
    "set_": lambda layer: layer.weight.set_((layer.weight + 1).untyped_storage(), 0, layer.weight.shape, (8, 1)),
    ".data": _data,
    "optimizer": _step,
    "load_state_dict": _load,
}


@pytest.mark.parametrize("way", CHANGES)
def test_an_update_inside_a_region_is_seen(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, way: str) -> None:
    """A training loop inside one region (of the whole epoch, say) must not train on old weights."""
    with amp.autocast():
        with torch.no_grad():
            layer(batch)
            CHANGES[way](layer)
        actual = layer(batch)
    assert torch.equal(actual, functional.linear(batch.to(amp.dtype), layer.weight.detach().to(amp.dtype)))


def test_a_replaced_weight_is_another_one(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """A new Parameter in the old one's place has no copy yet."""
    with amp.autocast():
        layer(batch)
        layer.weight = nn.Parameter(layer.weight.detach() + 1)
        actual = layer(batch)
    assert torch.equal(actual, functional.linear(batch.to(amp.dtype), layer.weight.detach().to(amp.dtype)))


@pytest.mark.parametrize("way", CHANGES)
def test_a_frozen_weight_is_never_stale(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, way: str) -> None:
    """A frozen weight is not cached: the moving average of a target network may be updated inside a region."""
    layer.requires_grad_(requires_grad=False)
    with amp.autocast(), torch.no_grad():
        layer(batch)
        CHANGES[way](layer)
        actual = layer(batch)
    assert torch.equal(actual, functional.linear(batch.to(amp.dtype), layer.weight.to(amp.dtype)))
