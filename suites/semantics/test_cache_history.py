"""Casts that were cached without a graph are never reused where one is needed, for each operator and layer.

See pytorch/pytorch#112583 and #141896: an evaluation, a target network or a checkpoint's first pass under no_grad
inside a region, and then training on weights that get no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .users import LAYERS, OPERATORS

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
KINDS = (*OPERATORS, *LAYERS)
FIRST = pytest.mark.parametrize("first", ["no_grad", "inference_mode"])


def _seeded(amp: SuiteAmp, kind: str) -> tuple[Callable[[], torch.Tensor], list[torch.nn.Parameter]]:
    """Return a call that uses weights, and the weights; the same each time."""
    torch.manual_seed(amp.config.seed)
    if kind in LAYERS:
        build, shape = LAYERS[kind]
        layer, x = build().to(amp.device.torch_device), torch.randn(shape).to(amp.device.torch_device)
        return lambda: layer(x), list(layer.parameters())
    shape, use = OPERATORS[kind]
    weight = torch.nn.Parameter(torch.randn(shape).to(amp.device.torch_device))
    return lambda: use(weight), [weight]


def _gradients(amp: SuiteAmp, kind: str, first: str) -> list[torch.Tensor | None]:
    call, weights = _seeded(amp, kind)
    with amp.autocast():
        with MODES[first]():
            call()
        result = call()
        with MODES[first]():
            call()
        loss = result.float().square().sum()
    if loss.requires_grad:
        loss.backward()
    return [weight.grad for weight in weights]


def _expect_equal(
    amp: SuiteAmp, kind: str, what: str, actual: list[torch.Tensor | None], expected: list[torch.Tensor | None]
) -> None:
    lost = [i for i, (a, b) in enumerate(zip(actual, expected, strict=True)) if a is None and b is not None]
    changed = [
        i
        for i, (a, b) in enumerate(zip(actual, expected, strict=True))
        if a is not None and (b is None or not torch.equal(a, b))
    ]
    if lost or changed:
        raise AmpFailure(
            f"{what} costs {kind} gradients on {amp.target.id}",
            label_before="rule",
            before="the gradients of a region in which every use needs them, bit for bit",
            now=f"none for the weights {lost}, others for the weights {changed} on torch {torch.__version__}",
            likely="the cast cache keeps a copy that was made without history, and hands it to a use with gradients",
        )


@FIRST
@pytest.mark.parametrize("kind", KINDS)
def test_a_use_without_gradients_costs_no_gradient(amp: SuiteAmp, kind: str, first: str) -> None:
    """Up to torch 2.10 this is a known fault of all but einsum: it permutes its weight, and a view was never cached."""
    expected = _gradients(amp, kind, "grad")
    assert all(gradient is not None for gradient in expected)
    _expect_equal(amp, kind, f"a use under {first}", _gradients(amp, kind, first), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_between_regions_is_seen(amp: SuiteAmp, kind: str, mode: str) -> None:
    """Evaluate repeatedly, with training steps in between: each operator reads the current weights."""
    call, weights = _seeded(amp, kind)
    fresh, updated = _seeded(amp, kind)
    with MODES[mode](), amp.autocast():
        before = call().detach().clone()
    with torch.no_grad():
        for weight in (*weights, *updated):
            weight.mul_(-0.75)
    with MODES[mode](), amp.autocast():
        after = call().detach().clone()
    with MODES[mode](), amp.autocast(cache_enabled=False):
        expected = fresh().detach().clone()
    assert not torch.equal(before, expected), "the update changes nothing here"
    if not torch.equal(after, expected):
        raise AmpFailure(
            f"{kind} computes with old weights on {amp.target.id}",
            label_before="rule",
            before="the cache is dropped where the outermost region ends (torch.autocast.__exit__)",
            now=f"under {mode} the region after an update does not see it",
            likely="a copy of the weight outlives its region",
        )
