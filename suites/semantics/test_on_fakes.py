"""Semantics of a region that need no values: checked on fake back ends, too, whose regions are state alone."""

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
    """Open a region in a generator, as a context manager of a project may."""
    with amp.autocast(dtype=dtype):
        yield


def test_a_generator_of_regions_nests(amp: SuiteAmp) -> None:
    """Enter in the order of ``with``: products follow the innermost, and each exit restores the previous state."""
    with amp.device.tensors():
        actual = [product_dtype(amp.device.torch_device)]
        with _suspended(amp, amp.dtype):
            actual.append(product_dtype(amp.device.torch_device))
            with _suspended(amp, OTHER[amp.dtype]):
                actual.append(product_dtype(amp.device.torch_device))
            actual.append(product_dtype(amp.device.torch_device))
        actual.append(product_dtype(amp.device.torch_device))
    expected = [torch.float32, amp.dtype, OTHER[amp.dtype], amp.dtype, torch.float32]
    expect_state(amp, "as products tell it", actual, expected, likely="a region does not restore what it found")


def _regions_and_casts(_target: Target) -> Iterator[object]:
    """Yield regions, on or off, and the dtypes of custom_fwd's casts."""
    for region in ("on", "off", "none"):
        for name, cast_inputs in (("as is", None), ("float32", torch.float32), ("float16", torch.float16)):
            yield pytest.param((region, cast_inputs), id=f"{region}-{name}")


@pytest.mark.amp_parametrize("region_and_cast", _regions_and_casts)
def test_custom_functions_see_the_region_of_their_device(
    amp: SuiteAmp, region_and_cast: tuple[str, torch.dtype | None]
) -> None:
    """``cast_inputs`` in a region that is on casts, and disables it inside; else nothing changes."""
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
    """A rule casts on its device, and on no other.

    Releases up to 2.11 accept rules for the CPU and CUDA only. MTIA can have none (no report found):
    ``torch._C.DispatchKey`` does not name its autocast key. The test will show when it does.
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
        wide = torch.ones(2, device=amp.device.torch_device)
        with amp.autocast():
            actual = copied(wide).dtype
        outside = copied(wide).dtype
    expect_dtype(amp, "an extension with a rule", actual, amp.dtype, likely="its rule is not called")
    assert outside is torch.float32
    if amp.device.type != "cpu":
        with torch.autocast("cpu", amp.dtype):
            assert copied(torch.ones(2)).dtype is torch.float32


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_what_needs_no_gradient_is_cast_at_each_use(amp: SuiteAmp, *, cache: bool) -> None:
    """A frozen weight is never in the cache; a low-precision result is not cast."""
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
