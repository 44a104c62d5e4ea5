"""Other global settings around a region: default dtype, default device, grad modes, hooks, old setters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .state import OTHER, State, expect_dtype, expect_state, product_dtype

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=dtype_name)


@DTYPES
def test_the_default_dtype_is_not_autocasts(amp: SuiteAmp, dtype: torch.dtype) -> None:
    """``torch.set_default_dtype`` affects new tensors, not casts: float64 stays float64, float32 is cast."""
    device = amp.device.torch_device
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        result = torch.ones(4, 4, device=device)
        with amp.autocast():
            inside, float32 = State.now(amp.device.type), torch.ones(4, 4, device=device, dtype=torch.float32)
            actual = torch.mm(result, result).dtype, torch.mm(float32, float32).dtype
        with torch.autocast(amp.device.type):
            default = torch.get_autocast_dtype(amp.device.type)
    finally:
        torch.set_default_dtype(before)
    assert inside.dtype is amp.dtype
    assert default is torch.get_autocast_dtype(amp.device.type)
    assert actual == (torch.float64 if dtype is torch.float64 else amp.dtype, amp.dtype)


@pytest.mark.amp(fake=True)
@DTYPES
def test_the_default_dtype_may_change_inside(amp: SuiteAmp, dtype: torch.dtype) -> None:
    """Change the default dtype and restore it: neither the region nor the default affects the other."""
    before = torch.get_default_dtype()
    try:
        with amp.autocast():
            torch.set_default_dtype(dtype)
            assert State.now(amp.device.type).dtype is amp.dtype
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("default", ["meta", "cpu"])
@pytest.mark.parametrize("order", ["device outside", "device inside"])
def test_a_region_under_a_default_device(amp: SuiteAmp, default: str, order: str) -> None:
    """``torch.device`` as a context, as for models on meta, does not disable a region of the device type."""
    contexts: list[Callable[[], AbstractContextManager[Any]]] = [lambda: torch.device(default), amp.autocast]
    first, second = contexts if order == "device outside" else contexts[::-1]
    device = amp.device.torch_device
    with first(), second():
        state = State.now(amp.device.type)
        actual = product_dtype(device)
        elsewhere = torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert (state.enabled, state.dtype) == (True, amp.dtype), "a default device switches the region off"
    expect_dtype(
        amp,
        f"a product, {default}, {order}",
        actual,
        amp.dtype,
        likely="a default device takes products out of the region",
    )
    assert elsewhere.device.type == default
    assert elsewhere.dtype is (amp.dtype if default == amp.device.type else torch.float32)


def test_a_default_device_that_was_set(amp: SuiteAmp) -> None:
    torch.set_default_device(amp.device.torch_device)
    try:
        with amp.autocast():
            actual = torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    finally:
        torch.set_default_device(None)
    assert actual.dtype is amp.dtype


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "enable_grad in no_grad": torch.enable_grad,
    "inference_mode off": lambda: torch.inference_mode(mode=False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(mode=True, check_nan=False),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
}

_IMAGE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda t: functional.softmax(t, -1),
    "nn.Softmax": nn.Softmax(-1),
    "nn.LogSoftmax": nn.LogSoftmax(-1),
    "softmin": lambda t: functional.softmin(t, -1),
    "gelu": functional.gelu,
    "layer_norm": lambda t: functional.layer_norm(t, t.shape[-1:]),
    "normalize": functional.normalize,
    "group_norm": lambda t: functional.group_norm(t, 1),
    "mse_loss": lambda t: functional.mse_loss(t, torch.zeros_like(t)),
    "cross_entropy": lambda t: functional.cross_entropy(t.flatten(1), torch.tensor([1, 2], device=t.device)),
    "kl_div": lambda t: functional.kl_div(t, t.softmax(-1), reduction="batchmean"),
    "interpolate": lambda t: functional.interpolate(t, scale_factor=2, mode="bilinear"),
    "avg_pool": lambda t: functional.avg_pool2d(t, 2),
    "prod": torch.prod,
    "cumsum": lambda t: torch.cumsum(t, -1),
    "norm": torch.linalg.vector_norm,
    "pow": lambda t: t**3,
    "products": lambda t: functional.linear(t, torch.ones(6, 6, device=t.device)),
    "conv2d": lambda t: functional.conv2d(t, torch.ones(4, 3, 3, 3, device=t.device)),
    "matmul": lambda t: t @ t,
    "einsum": lambda t: torch.einsum("bcij,bcjk,bckl->bcil", t, t, t),
}


@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
@pytest.mark.parametrize("function", _IMAGE)
def test_a_result_does_not_depend_on_the_grad_mode(amp: SuiteAmp, function: str, *, low: bool) -> None:
    """Evaluation has the dtype and the bits of training."""
    values = torch.randn(2, 3, 6, 6).to(amp.device.torch_device, amp.dtype if low else torch.float32)
    results = {}
    for mode, enter in MODES.items():
        with amp.autocast(), enter():
            results[f"{mode} in a region"] = _IMAGE[function](values)
        with enter(), amp.autocast():
            results[f"a region in {mode}"] = _IMAGE[function](values)
    results["with a graph"] = results["grad in a region"]
    graph = values.clone().requires_grad_()
    with amp.autocast():
        results["with a graph"] = _IMAGE[function](graph).detach()
    first = results["grad in a region"]
    amp.observe(f"{function} of {'low' if low else 'float32'}", dtype_name(first.dtype), kind="dtype")
    for where, result in results.items():
        assert result.dtype is first.dtype, (
            f"{function}, {where}: {dtype_name(result.dtype)}, else {dtype_name(first.dtype)}"
        )
        assert torch.equal(result, first), f"{function}, {where}, returns different bits"


def test_hooks_of_modules_run_in_the_region(amp: SuiteAmp) -> None:
    """Hooks of forward, of one module and of all, run in the region; hooks of backward run where backward is called."""
    layer = nn.Linear(4, 4).to(amp.device.torch_device)
    observed: list[tuple[str, torch.dtype]] = []

    def note(where: str) -> Callable[..., None]:
        return lambda *_: observed.append((where, product_dtype(amp.device.torch_device)))

    handles = [
        layer.register_forward_pre_hook(note("before forward")),
        layer.register_forward_hook(note("after forward")),
        layer.register_full_backward_hook(note("backward")),
        layer.weight.register_hook(note("gradient")),
        nn.modules.module.register_module_forward_hook(note("after forward, of all")),
    ]
    try:
        with amp.autocast():
            result = layer(torch.randn(2, 4, device=amp.device.torch_device, requires_grad=True))
        result.float().sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    forward = {(where, amp.dtype) for where in ("before forward", "after forward", "after forward, of all")}
    assert set(observed) == forward | {("backward", torch.float32), ("gradient", torch.float32)}


def test_the_old_setters_of_the_cpu_set_what_the_new_ones_set(amp: SuiteAmp) -> None:
    """``torch.set_autocast_cpu_enabled`` and ``set_autocast_cpu_dtype`` are deprecated since torch 2.4."""
    if not hasattr(torch, "set_autocast_cpu_enabled"):
        pytest.skip("this torch has removed its deprecated setters")
    before = State.now("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            torch.set_autocast_cpu_enabled(True)
            torch.set_autocast_cpu_dtype(OTHER[before.dtype])
            actual, product = State.now("cpu"), product_dtype(torch.device("cpu"))
        finally:
            torch.set_autocast_enabled("cpu", before.enabled)
            torch.set_autocast_dtype("cpu", before.dtype)
            torch.clear_autocast_cache()
    expected = replace(before, enabled=True, dtype=OTHER[before.dtype])
    expect_state(amp, "after the old setters", actual, expected, likely="the deprecated setters do nothing")
    assert product is OTHER[before.dtype]
