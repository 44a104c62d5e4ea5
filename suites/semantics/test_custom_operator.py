"""``torch.library`` operators with an autocast rule of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_amp.amp import Amp

from .releases import REGISTER_AUTOCAST
from .state import expect_dtype, name

pytestmark = REGISTER_AUTOCAST


def _add_of(amp: Amp, *, rule: bool, suffix: str = "") -> Any:
    """An operator that refuses mixed arguments, with or without an autocast rule on the device."""
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


def test_a_rule_casts_the_arguments(amp: Amp) -> None:
    """The kind of facebookresearch/xformers#1046: without a rule an extension meets mixed arguments."""
    add = _add_of(amp, rule=True)
    wide = torch.ones(2, device=amp.device.torch_device)
    with amp.autocast():
        mixed, both = add(wide, wide.to(amp.dtype)), add(wide, wide)
    expect_dtype(amp, "custom operator, mixed arguments", mixed.dtype, amp.dtype, likely="its rule is not called")
    expect_dtype(amp, "custom operator, float32 arguments", both.dtype, amp.dtype, likely="its rule is not called")


def test_a_rule_is_for_regions_only(amp: Amp) -> None:
    add = _add_of(amp, rule=True, suffix="outside_")
    wide = torch.ones(2, device=amp.device.torch_device)
    assert add(wide, wide).dtype is torch.float32
    with amp.autocast(), amp.autocast(enabled=False):
        assert add(wide, wide).dtype is torch.float32
        with pytest.raises(ValueError, match=name(amp.dtype)):
            add(wide, wide.to(amp.dtype))


def test_an_operator_without_a_rule_is_left_alone(amp: Amp) -> None:
    add = _add_of(amp, rule=False)
    wide = torch.ones(2, device=amp.device.torch_device)
    with amp.autocast():
        assert add(wide, wide).dtype is torch.float32
        with pytest.raises(ValueError, match=name(amp.dtype)):
            add(wide, wide.to(amp.dtype))


def test_gradients_have_the_dtype_of_the_arguments(amp: Amp) -> None:
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
