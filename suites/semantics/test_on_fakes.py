"""Semantics of a region that need no tensor values, also checked on fake devices, where a region is only state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.run.targets import Target
from pytest_amp.torch_private import recorded_calls

from .releases import REGISTER_AUTOCAST, RELEASE
from .state import OTHER, State, expect_dtype, expect_state, product_dtype

pytestmark = pytest.mark.amp(fake=True)


@contextmanager
def _suspended(amp: SuiteAmp, dtype: torch.dtype) -> Iterator[None]:
    """Open a region inside a generator-based context manager, as user code does."""
    with amp.autocast(dtype=dtype):
        yield


def test_a_generator_of_regions_nests(amp: SuiteAmp) -> None:
    """Nest generator-based regions: products have the innermost region's dtype; each exit restores the outer region."""
    with amp.device.tensors():
        actual = [product_dtype(amp.device.torch_device)]
        with _suspended(amp, amp.dtype):
            actual.append(product_dtype(amp.device.torch_device))
            with _suspended(amp, OTHER[amp.dtype]):
                actual.append(product_dtype(amp.device.torch_device))
            actual.append(product_dtype(amp.device.torch_device))
        actual.append(product_dtype(amp.device.torch_device))
    expected = [torch.float32, amp.dtype, OTHER[amp.dtype], amp.dtype, torch.float32]
    expect_state(amp, "according to products", actual, expected, likely="a region does not restore the previous state")


def _regions_and_casts(_target: Target) -> Iterator[object]:
    """Yield each kind of region (enabled, disabled, none) with each ``cast_inputs`` of ``custom_fwd``."""
    for region in ("on", "off", "none"):
        for name, cast_inputs in (("as is", None), ("float32", torch.float32), ("float16", torch.float16)):
            yield pytest.param((region, cast_inputs), id=f"{region}-{name}")


@pytest.mark.amp_parametrize("region_and_cast", _regions_and_casts)
def test_custom_functions_see_the_region_of_their_device(
    amp: SuiteAmp, region_and_cast: tuple[str, torch.dtype | None]
) -> None:
    """In an enabled region ``cast_inputs`` casts the inputs and disables autocast; otherwise it has no effect."""
    region, cast_inputs = region_and_cast
    observed: list[Any] = []
    device_type = amp.device.type

    class Noted(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=cast_inputs)
        def forward(_: Any, matrix: torch.Tensor) -> torch.Tensor:
            observed.extend((torch.is_autocast_enabled(device_type), matrix.dtype, (matrix @ matrix).dtype))
            return matrix.clone()

    with amp.device.tensors():
        matrix = torch.ones(2, 2, device=amp.device.torch_device)
        before = State.now(device_type)
        if region == "none":
            Noted.apply(matrix)
        else:
            with amp.autocast(enabled=region == "on"):
                Noted.apply(matrix)
        after = State.now(device_type)
    cast = cast_inputs if region == "on" and cast_inputs is not None else None
    product = cast or (amp.dtype if region == "on" else torch.float32)
    expected = [region == "on" and cast is None, cast or torch.float32, product]
    expect_state(amp, "in custom_fwd", observed, expected, likely="custom_fwd asks another device's state")
    assert before == after


@REGISTER_AUTOCAST
def test_a_rule_of_an_extension_is_its_devices(amp: SuiteAmp) -> None:
    """``register_autocast`` casts on its own device type only.

    Releases up to 2.11 accept rules for the CPU and CUDA only. MTIA cannot have a rule (no report found), because
    ``torch._C.DispatchKey`` lacks its autocast key. The test fails when a release adds the key.
    """
    label = f"amp_semantics::fake_{amp.device.type}_{amp.precision.name}"

    @torch.library.custom_op(label, mutates_args=())
    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    copied.register_fake(torch.empty_like)
    if amp.device.type == "mtia" or (amp.device.type not in ("cpu", "cuda") and RELEASE < (2, 12)):
        with pytest.raises((AttributeError, ValueError), match=r"AutocastMTIA|[Uu]nknown device type"):
            copied.register_autocast(amp.device.type, amp.dtype)
        return
    copied.register_autocast(amp.device.type, amp.dtype)
    with amp.device.tensors():
        float32 = torch.ones(2, device=amp.device.torch_device)
        with amp.autocast():
            actual = copied(float32).dtype
        outside = copied(float32).dtype
    expect_dtype(amp, "an extension with a rule", actual, amp.dtype, likely="its rule is not called")
    assert outside is torch.float32
    if amp.device.type != "cpu":
        with torch.autocast("cpu", amp.dtype):
            assert copied(torch.ones(2)).dtype is torch.float32


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_what_needs_no_gradient_is_cast_at_each_use(amp: SuiteAmp, *, cache: bool) -> None:
    """A weight without ``requires_grad`` is never cached; a low-precision operand is not cast again."""
    with amp.device.tensors():
        weight = torch.ones(7, 5, device=amp.device.torch_device)
        rows = torch.ones(3, 5, device=amp.device.torch_device)
        with recorded_calls() as calls, amp.autocast(cache_enabled=cache):
            for _ in range(3):
                functional.linear(rows, weight) @ weight
    casts = [call.tensors[0] for call in calls if call.operator in ("aten::_to_copy", "aten::to.dtype")]
    amp.observe(f"casts of a frozen weight, {cache}", casts.count("float32[7, 5]"), kind="count")
    assert casts.count("float32[7, 5]") == 6
    assert casts.count("float32[3, 5]") == 3
    assert len(casts) == 9
