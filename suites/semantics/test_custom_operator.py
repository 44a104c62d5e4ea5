"""``torch.library`` operators with an autocast rule of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .releases import REGISTER_AUTOCAST
from .state import OTHER, expect_dtype

pytestmark = REGISTER_AUTOCAST


def _add_of(amp: SuiteAmp, *, rule: bool, suffix: str = "") -> Any:
    """Register an operator that refuses mixed arguments, with or without an autocast rule on the device."""
    label = f"{suffix}{'with' if rule else 'without'}_rule_{amp.device.type}_{amp.precision.name}"

    @torch.library.custom_op(f"amp_semantics::{label}", mutates_args=())
    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype != right.dtype:
            raise ValueError(f"{left.dtype} and {right.dtype}")
        return left + right

    add.register_autograd(lambda _, gradient: (gradient, gradient))
    if rule:
        add.register_autocast(amp.device.type, amp.dtype)
    return add


def test_a_rule_casts_the_arguments(amp: SuiteAmp) -> None:
    """Without a rule an extension receives mixed arguments (the kind of facebookresearch/xformers#1046)."""
    add = _add_of(amp, rule=True)
    float32 = torch.ones(2, device=amp.device.torch_device)
    with amp.autocast():
        mixed, both = add(float32, float32.to(amp.dtype)), add(float32, float32)
    expect_dtype(amp, "custom operator, mixed arguments", mixed.dtype, amp.dtype, likely="its rule is not called")
    expect_dtype(amp, "custom operator, float32 arguments", both.dtype, amp.dtype, likely="its rule is not called")


def test_a_rule_is_for_regions_only(amp: SuiteAmp) -> None:
    add = _add_of(amp, rule=True, suffix="outside_")
    float32 = torch.ones(2, device=amp.device.torch_device)
    assert add(float32, float32).dtype is torch.float32
    with amp.autocast(), amp.autocast(enabled=False):
        assert add(float32, float32).dtype is torch.float32
        with pytest.raises(ValueError, match=dtype_name(amp.dtype)):
            add(float32, float32.to(amp.dtype))


def test_an_operator_without_a_rule_is_left_alone(amp: SuiteAmp) -> None:
    add = _add_of(amp, rule=False)
    float32 = torch.ones(2, device=amp.device.torch_device)
    with amp.autocast():
        assert add(float32, float32).dtype is torch.float32
        with pytest.raises(ValueError, match=dtype_name(amp.dtype)):
            add(float32, float32.to(amp.dtype))


def test_gradients_have_the_dtype_of_the_arguments(amp: SuiteAmp) -> None:
    add = _add_of(amp, rule=True, suffix="gradient_")
    left = torch.ones(2, device=amp.device.torch_device, requires_grad=True)
    right = torch.ones(2, device=amp.device.torch_device, dtype=amp.dtype, requires_grad=True)
    with amp.autocast():
        result = add(left, right)
    result.float().sum().backward()
    assert left.grad is not None
    assert right.grad is not None
    assert (left.grad.dtype, right.grad.dtype) == (torch.float32, amp.dtype)
    assert bool((left.grad == 1).all())


def test_a_rule_is_fixed_to_one_dtype(amp: SuiteAmp) -> None:
    """In a region of the other dtype the operator still computes in the rule's dtype, unlike torch's own operators."""
    add = _add_of(amp, rule=True, suffix="other_")
    float32 = torch.ones(2, device=amp.device.torch_device)
    with amp.autocast(dtype=OTHER[amp.dtype]):
        actual = add(float32, float32.to(OTHER[amp.dtype]))
    expect_dtype(
        amp, "custom operator in the other dtype", actual.dtype, amp.dtype, likely="rules follow the region now"
    )


def test_a_rule_casts_what_is_floating_only(amp: SuiteAmp) -> None:
    """Integers and float64 pass unchanged, lists are cast within (``cast`` of ``torch.library.register_autocast``)."""
    label = f"amp_semantics::mixed_{amp.device.type}_{amp.precision.name}"
    observed: list[torch.dtype] = []

    @torch.library.custom_op(label, mutates_args=())
    def mixed(
        float32: torch.Tensor, index: torch.Tensor, double: torch.Tensor, rows: list[torch.Tensor]
    ) -> torch.Tensor:
        observed.extend(t.dtype for t in (float32, index, double, *rows))
        return float32.clone()

    torch.library.register_autocast(label, amp.device.type, amp.dtype)
    device = amp.device.torch_device
    float32, index = torch.ones(2, device=device), torch.arange(2, device=device)
    with amp.autocast():
        mixed(float32, index, float32.double(), [float32, index])
    assert observed == [amp.dtype, torch.int64, torch.float64, amp.dtype, torch.int64]


def test_a_rule_for_an_operator_of_a_library(amp: SuiteAmp) -> None:
    """``torch.library.define`` and ``impl``, then the rule by the operator's name."""
    label = f"amp_semantics::twice_{amp.device.type}_{amp.precision.name}"
    torch.library.define(label, "(Tensor x) -> Tensor")
    torch.library.impl(label, "default", lambda x: x * 2)
    torch.library.register_autocast(label, amp.device.type, amp.dtype)
    operator = getattr(torch.ops.amp_semantics, label.partition("::")[2])
    float32 = torch.ones(2, device=amp.device.torch_device)
    with amp.autocast():
        expect_dtype(
            amp, "an operator of a library", operator(float32).dtype, amp.dtype, likely="its rule is not called"
        )
    assert operator(float32).dtype is torch.float32


def test_inside_an_operator_autocast_is_off(amp: SuiteAmp) -> None:
    """Products in its body have the dtype of its arguments, under a rule: the body runs below autocast."""
    label = f"amp_semantics::inner_{amp.device.type}_{amp.precision.name}"

    @torch.library.custom_op(label, mutates_args=())
    def inner(left: torch.Tensor) -> torch.Tensor:
        return left.float() @ left.float()

    inner.register_autocast(amp.device.type, amp.dtype)
    with amp.autocast():
        actual = inner(torch.ones(2, 2, device=amp.device.torch_device))
    expect_dtype(amp, "a product inside an operator", actual.dtype, torch.float32, likely="autocast stays on inside")


def test_a_rule_for_no_device_is_refused(amp: SuiteAmp) -> None:
    add = _add_of(amp, rule=False, suffix="refused_")
    with pytest.raises(ValueError, match="meta"):
        add.register_autocast("meta", amp.dtype)
