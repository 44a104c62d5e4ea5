"""Manual casts: autocast's results without autocast's kernels."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp import torch_private
from pytest_amp.devices import find_device
from pytest_amp.numerics import asked_for_autocast, manual_casts

DTYPES = [torch.bfloat16, torch.float16]


@contextlib.contextmanager
def manual_region(dtype: torch.dtype) -> Iterator[None]:
    with torch.autocast("cpu", dtype), manual_casts("cpu"):
        yield


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "lower precision": lambda x: x @ x,
    "float32": lambda x: f.mse_loss((x @ x), x),
    "promoted": lambda x: torch.cat([x @ x, x]),
    "no rule": lambda x: (x @ x).softmax(-1),
    "inside a composite operator": lambda x: torch.einsum("ij,jk->ik", x, x),
    "inside a Python function": lambda x: f.multi_head_attention_forward(
        x[:, None], x[:, None], x[:, None], 6, 2, torch.ones(18, 6), torch.ones(18), None, None,
        add_zero_attn=False, dropout_p=0.0, out_proj_weight=torch.ones(6, 6), out_proj_bias=torch.ones(6),
    )[0],
    "dtype by position": lambda x: torch.softmax(x @ x, -1, torch.float64),
    "other dtypes": lambda x: x.double() @ x.double(),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_manual_casts_match_autocast(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(6, 6)
    with torch.autocast("cpu", dtype):
        expected = FUNCTIONS[name](x)
    with manual_region(dtype):
        result = FUNCTIONS[name](x)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


def registered(name: str, kernel: Callable[..., Tensor]) -> Any:
    """Register a kernel at the autocast key until the library is destroyed."""
    library = UNTYPED.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, kernel, "AutocastCPU")
    return library


UNTYPED: Any = torch


def test_manual_casts_run_no_autocast_kernel() -> None:
    """Manual casts follow a rule, even if autocast's kernel does not."""
    library = registered("bmm", lambda _a, _b: torch.zeros(1))
    try:
        x = torch.ones(1, 2, 2)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.bmm(x, x).shape == (1,)
        with manual_region(torch.bfloat16):
            assert torch.equal(torch.bmm(x, x), torch.full((1, 2, 2), 2.0, dtype=torch.bfloat16))
    finally:
        library._destroy()


def test_operator_without_a_rule_runs_without_autocast() -> None:
    """Register a kernel that the spec does not know."""
    library = registered("relu", lambda _x: torch.zeros(1))
    try:
        with manual_region(torch.bfloat16):
            assert torch.equal(torch.relu(torch.ones(3)), torch.ones(3))
    finally:
        library._destroy()


def test_manual_casts_with_a_dtype_replace_a_region() -> None:
    x = torch.randn(4, 4)
    with manual_casts("cpu", torch.float16):
        assert not torch.is_autocast_enabled("cpu")
        assert (x @ x).dtype == torch.float16
        assert f.mse_loss(x @ x, x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_queries_of_autocast_state_are_noted() -> None:
    with asked_for_autocast() as queries:
        torch.ones(2, 2) @ torch.ones(2, 2)
        assert not queries
        assert torch.is_autocast_enabled("cpu") is False
        assert queries == ["is_autocast_enabled"]
        with torch.autocast("cpu", torch.float16):
            assert torch.get_autocast_dtype("cpu") == torch.float16
    queries.clear()
    torch.is_autocast_enabled("cpu")
    assert not queries


def test_manual_casts_do_nothing_outside_a_region() -> None:
    x = torch.randn(4, 4)
    with manual_casts("cpu"):
        assert (x @ x).dtype == torch.float32


def test_nested_regions_are_respected() -> None:
    x = torch.randn(4, 4)
    with manual_region(torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("cpu", torch.float16):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_weight_is_cast_once() -> None:
    """Its gradients are accumulated in the autocast dtype, as with autocast's cache."""
    layer = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    gradients = []
    for region in (lambda: torch.autocast("cpu", torch.bfloat16), lambda: manual_region(torch.bfloat16)):
        layer.zero_grad()
        with region():
            y = layer(layer(layer(x)))
        torch.autograd.backward(y.float().sum())
        gradients.append(layer.weight.grad)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_use_under_no_grad_keeps_later_gradients() -> None:
    layer = nn.Linear(8, 8)
    with manual_region(torch.bfloat16):
        with torch.no_grad():
            layer(torch.randn(4, 8))
        y = layer(torch.randn(4, 8))
    torch.autograd.backward(y.float().sum())
    assert layer.weight.grad is not None


def test_promotion_error_is_raised() -> None:
    with manual_region(torch.bfloat16), pytest.raises(RuntimeError):
        torch.cat([torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16)])


def test_exception_restores_the_state() -> None:
    with pytest.raises(ZeroDivisionError), manual_region(torch.bfloat16):
        raise ZeroDivisionError
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert not torch_private.interception._HANDLERS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["fake:cuda", "fake:xpu", "fake:mtia", "fake:mps"])
def test_manual_casts_follow_rules_of_other_devices(device: str, dtype: torch.dtype) -> None:
    """Compare the dtypes of a chain of operators, on devices that need no hardware."""
    fake = find_device(device)
    actual: list[list[torch.dtype]] = []
    for region in (contextlib.nullcontext(), manual_casts(fake.type)):
        with fake.tensors():
            x, weight = (torch.empty(8, 8, device=fake.torch_device) for _ in range(2))
            with fake.autocast(dtype), region:
                actual.append([tensor.dtype for tensor in _chain(x, weight)])
    assert actual[0] == actual[1]
    assert actual[0][0] == dtype
    assert torch.float32 in actual[0]


def _chain(x: Tensor, weight: Tensor) -> Iterator[Tensor]:
    low = f.linear(x, weight)
    yield low
    yield f.layer_norm(low, (8,))
    yield low.softmax(-1)
    yield torch.softmax(low, -1, dtype=torch.float16)
    yield low.cumsum(0)
    yield low.norm()
    yield f.pairwise_distance(low, low)
    yield torch.norm_except_dim(low)
    yield low.exp()
    yield torch.cat([low, x])
    yield torch.addcmul(low, low, x)
    yield f.mse_loss(low, x)
    yield low + low
    yield f.rms_norm(low, (8,))
