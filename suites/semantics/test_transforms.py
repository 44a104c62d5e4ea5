"""Function transforms and compilation keep the region in which they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .models import loss_of
from .state import OTHER, expect_dtype

#: Functions of one row of length 8, by the operator with an autocast rule that they call; ``m`` is an 8 by 8 matrix.
VMAPPED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": lambda row, m: row @ m,
    "mm": lambda row, m: torch.mm(row.view(1, 8), m),
    "bmm": lambda row, m: torch.bmm(row.view(1, 1, 8), m[None]),
    "linear without bias": functional.linear,
    "mse_loss": lambda row, m: functional.mse_loss(row, m[0]),
    "linear": lambda row, m: functional.linear(row, m, m[0]),
    "addmm": lambda row, m: torch.addmm(m[0], row.view(1, 8), m),
    "conv1d": lambda row, m: functional.conv1d(row.view(1, 8, 1), m[:, :, None]),
}


@pytest.mark.parametrize("operator", VMAPPED)
def test_vmap_computes_in_the_same_dtype(amp: SuiteAmp, operator: str) -> None:
    matrix, rows = (torch.randn(size, 8, device=amp.device.torch_device) for size in (8, 3))

    def function(row: torch.Tensor) -> torch.Tensor:
        return VMAPPED[operator](row, matrix)

    with amp.autocast():
        eager, mapped = function(rows[0]).dtype, vmap(function)(rows).dtype
    amp.observe(f"vmap {operator}", [dtype_name(eager), dtype_name(mapped)], kind="dtype")
    assert mapped is eager, f"{operator} computes in {dtype_name(eager)}, under vmap in {dtype_name(mapped)}"


def test_functional_call_computes_what_the_module_computes(amp: SuiteAmp) -> None:
    layer = nn.Linear(8, 8).to(amp.device.torch_device)
    batch = torch.randn(4, 8, device=amp.device.torch_device)
    parameters = {key: value.detach().clone() for key, value in layer.named_parameters()}
    with amp.autocast():
        expected, actual = layer(batch), functional_call(layer, parameters, (batch,))
    assert actual.dtype is amp.dtype
    assert torch.equal(actual, expected)


def test_func_grad_gives_the_gradients_of_backward(amp: SuiteAmp) -> None:
    """Gradients are bitwise equal, in the parameters' dtype.

    The layers have no biases: ``grad`` runs backward in the region, and a bias's gradient is a sum, which CUDA's
    float32 list includes.
    """
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    model.to(amp.device.torch_device)
    batch = torch.randn(4, 8, device=amp.device.torch_device)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = functional_call(model, parameters, (batch,))
        return result.float().square().mean()

    parameters = {key: value.detach() for key, value in model.named_parameters()}
    with amp.autocast():
        actual = grad(loss)(parameters)
        expected = loss_of(model, batch)
    expected.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert actual[key].dtype is torch.float32, (
            f"torch.func.grad gives {key} a {dtype_name(actual[key].dtype)} gradient"
        )
        assert torch.equal(actual[key], parameter.grad), f"torch.func.grad gives {key} another gradient than backward"


@pytest.mark.parametrize("called", ["function", "module"])
def test_a_compiled_callable_follows_the_ambient_region(amp: SuiteAmp, called: str) -> None:
    """Call one compiled callable outside, in regions of either dtype, disabled, and outside again: eager's dtypes."""
    torch.compiler.reset()
    module = nn.Linear(4, 4, device=amp.device.torch_device)
    eager: Callable[..., Any] = module if called == "module" else lambda matrix: matrix @ matrix
    compiled = torch.compile(eager, backend="eager")
    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    actual = [compiled(matrix).dtype]
    for dtype, enabled in ((amp.dtype, True), (OTHER[amp.dtype], True), (amp.dtype, False)):
        with amp.autocast(dtype=dtype, enabled=enabled):
            actual.append(compiled(matrix).dtype)
    actual.append(compiled(matrix).dtype)
    expected = [torch.float32, amp.dtype, OTHER[amp.dtype], torch.float32, torch.float32]
    amp.observe(f"compiled {called}", [dtype_name(dtype) for dtype in actual], kind="dtype")
    assert actual == expected, f"a compiled {called} computes in {actual}, eager in {expected}"


def test_a_region_inside_a_compiled_function_survives_a_graph_break(amp: SuiteAmp) -> None:
    """Code that runs in Python after a graph break runs in the region, too (pytorch/pytorch#95837)."""
    torch.compiler.reset()

    @torch.compiler.disable
    def product(matrix: torch.Tensor) -> torch.Tensor:
        return matrix @ matrix

    def function(matrix: torch.Tensor) -> torch.Tensor:
        with torch.autocast(amp.device.type, amp.dtype):
            result: torch.Tensor = product(matrix)
        return result

    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    actual = torch.compile(function, backend="eager")(matrix).dtype
    expect_dtype(amp, "compiled, after a graph break", actual, amp.dtype, likely="the region is lost at the break")


def test_regions_inside_a_compiled_function_are_those_of_eager(amp: SuiteAmp) -> None:
    """Nest a disabled region, and one of the other dtype, in a region (similar to pytorch/pytorch#121631)."""
    torch.compiler.reset()
    other = OTHER[amp.dtype]

    def function(matrix: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast(amp.device.type, dtype=amp.dtype):
            outer = matrix @ matrix
            with torch.autocast(amp.device.type, enabled=False):
                disabled_product = matrix @ matrix
            with torch.autocast(amp.device.type, dtype=other):
                inner = matrix @ matrix
            again = matrix @ matrix
        return [outer, disabled_product, inner, again, matrix @ matrix]

    matrix = torch.randn(8, 8, device=amp.device.torch_device)
    actual = [product.dtype for product in torch.compile(function, backend="eager")(matrix)]
    amp.observe("compiled, nested regions", [dtype_name(dtype) for dtype in actual], kind="dtype")
    expected = [amp.dtype, torch.float32, other, amp.dtype, torch.float32]
    assert actual == expected, f"nested regions compute in {actual} when compiled, in {expected} in eager"
