"""Custom autograd functions and checkpoints inside a compiled function see the same regions as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.utils.checkpoint import checkpoint

from pytest_amp.amp import SuiteAmp

from .programs import AMBIENT, BACKENDS, Program, Tensors, expect_same_dtypes, expect_same_values, run


def _products(device_type: str, cast_inputs: torch.dtype | None) -> Program:
    """Return a function of two products; the second is a custom function whose backward is made of products, too."""

    class Product(torch.autograd.Function):
        """Custom function ``x @ w``, in the region of the call or in ``cast_inputs``."""

        @staticmethod
        @custom_fwd(device_type=device_type, cast_inputs=cast_inputs)
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @custom_bwd(device_type=device_type)
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w = ctx.saved_tensors
            return gradient @ w.t().to(gradient.dtype), x.t().to(gradient.dtype) @ gradient

    def function(x: torch.Tensor, w: Tensors) -> Tensors:
        hidden = torch.tanh(x @ w[0])
        result: torch.Tensor = Product.apply(hidden, w[1])
        return [hidden, result, result @ w[2]]

    return function


@BACKENDS
@pytest.mark.parametrize("inputs", ["as they come", "cast to float32"])
def test_a_custom_function_computes_in_its_region(amp: SuiteAmp, inputs: str, backend: str) -> None:
    """``custom_fwd`` with and without ``cast_inputs`` compiles into one graph with eager's dtypes and results."""
    function = _products(amp.device.type, torch.float32 if inputs == "cast to float32" else None)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for ambient in AMBIENT:
        actual, eager = run(amp, compiled, ambient), run(amp, function, ambient)
        what = f"a custom function ({backend}), inputs {inputs}, called in {ambient}"
        expect_same_dtypes(amp, what, actual, eager)
        float32 = run(amp, function, "none")
        expect_same_values(amp, what, [*actual.outputs, *actual.gradients], [*eager.outputs, *eager.gradients], float32)
        amp.observe(f"custom function, {inputs}, {backend}, {ambient}", [*actual.dtypes()], kind="dtype")


def _regions(device_type: str, low: torch.dtype) -> Program:
    """Return a custom function with a region and a disabled region in forward, and both in backward."""

    class Regions(torch.autograd.Function):
        """Custom function ``x @ w @ w``, the first product in low precision and the second in float32."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device_type, low):
                inner = x @ w
            with torch.autocast(device_type, enabled=False):
                ctx.save_for_backward(inner, x, w)
                return inner.to(w.dtype) @ w

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inner, x, w = ctx.saved_tensors
            with torch.autocast(device_type, enabled=False):
                outer = gradient @ w.t()
            with torch.autocast(device_type, low):
                return (outer @ w.t()).to(x.dtype), (inner.t() @ gradient + x.t() @ outer).to(w.dtype)

    return lambda x, w: [Regions.apply(x, w[0])]


@BACKENDS
def test_a_custom_function_with_regions_of_its_own_computes_in_them(amp: SuiteAmp, backend: str) -> None:
    """The function's own regions take precedence over any ambient region: eager's dtypes, outputs and gradients."""
    function = _regions(amp.device.type, amp.dtype)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for ambient in AMBIENT:
        actual, eager = run(amp, compiled, ambient), run(amp, function, ambient)
        what = f"a custom function with regions ({backend}), called in {ambient}"
        expect_same_dtypes(amp, what, actual, eager)
        exact = run(amp, function, ambient, dtype=torch.float64)
        expect_same_values(amp, what, [*actual.outputs, *actual.gradients], [*eager.outputs, *eager.gradients], exact)


class _Square(torch.autograd.Function):
    """Custom function without ``custom_fwd``: torch.autograd.Function changes no region, so it sees the current one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return (x @ w).float().square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        inner = 2 * (x @ w) * gradient
        return inner @ w.t(), x.t() @ inner


def _plain(x: torch.Tensor, w: Tensors) -> Tensors:
    return [_Square.apply(x, w[0])]


@pytest.mark.parametrize("ambient", ["none", "low"])
def test_a_function_without_custom_fwd_does_what_it_does_in_eager(amp: SuiteAmp, ambient: str) -> None:
    """Forward runs in the region, backward outside of it in float32; with ``custom_bwd`` it would be in the region."""
    actual = run(amp, torch.compile(_plain, backend="aot_eager", fullgraph=True), ambient)
    eager, float32 = run(amp, _plain, ambient), run(amp, _plain, "none")
    expect_same_dtypes(amp, f"a plain custom function, called in {ambient}", actual, eager)
    what = f"backward of a plain custom function, called in {ambient}"
    expect_same_values(amp, what, [*actual.outputs, *actual.gradients], [*eager.outputs, *eager.gradients], float32)


@pytest.mark.parametrize("compiled", ["around", "within"])
def test_a_checkpoint_and_a_compiled_block(amp: SuiteAmp, compiled: str) -> None:
    """A checkpoint inside the compiled function, and a compiled block inside a checkpoint, give eager's gradients."""

    def block(hidden: torch.Tensor, weights: Tensors) -> torch.Tensor:
        return torch.tanh(hidden @ weights[0]) @ weights[1]

    def function(x: torch.Tensor, w: Tensors) -> Tensors:
        inner: torch.Tensor = checkpoint(block, x, w[:2], use_reentrant=False)
        return [inner, checkpoint(block, inner, w[2:4], use_reentrant=False)]

    compiled_block = torch.compile(block, backend="aot_eager", fullgraph=True)

    def within(x: torch.Tensor, w: Tensors) -> Tensors:
        inner: torch.Tensor = checkpoint(compiled_block, x, w[:2], use_reentrant=False)
        return [inner, checkpoint(compiled_block, inner, w[2:4], use_reentrant=False)]

    whole = torch.compile(function, backend="aot_eager", fullgraph=True)
    actual, eager = run(amp, within if compiled == "within" else whole, "low"), run(amp, function, "low")
    float32 = run(amp, function, "none")
    what = f"a checkpoint, compiled {compiled}"
    expect_same_dtypes(amp, what, actual, eager)
    expect_same_values(amp, what, [*actual.outputs, *actual.gradients], [*eager.outputs, *eager.gradients], float32)
