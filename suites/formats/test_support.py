"""Supported formats: torch claims to support a format only if it works on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure


def _computes(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Return whether a product of this dtype is correct on the device."""
    try:
        a = torch.full((16, 16), 1.5, dtype=dtype, device=device)
        return bool(((a @ a).float().cpu() == 36).all())
    except (RuntimeError, AssertionError):  # torch without CUDA raises either
        return False


def _claims(**keywords: bool) -> bool:
    answer: Any = torch.cuda.is_bf16_supported(**keywords)
    return bool(answer)


@pytest.mark.parametrize("emulation", [None, True, False], ids=["asked", "with emulation", "without"])
def test_cuda_supports_bf16_where_it_says_so(amp: SuiteAmp, *, emulation: bool | None) -> None:
    """``torch.cuda.is_bf16_supported`` claims support only if a product works, also on a machine without CUDA.

    Without emulation it means hardware support (compute capability 8.0), so that it may deny a dtype that works.
    """
    claimed = _claims() if emulation is None else _claims(including_emulation=emulation)
    works = torch.cuda.is_available() and _computes(torch.bfloat16, "cuda")
    native = works and (torch.version.hip is not None or torch.cuda.get_device_capability() >= (8, 0))
    expected = native if emulation is False else works
    if claimed != expected:
        raise AmpFailure(
            f"torch.cuda.is_bf16_supported says {claimed}, and a bf16 product {'computes' if works else 'does not'}",
            label_before="rule",
            before=f"{expected}: what works" + (" without emulation" if emulation is False else ""),
            now=f"{claimed}, CUDA is {'there' if torch.cuda.is_available() else 'not there'}",
            likely="the answer is made from a version or a capability, and no longer from the device",
        )
    amp.observe(f"is_bf16_supported/{emulation}", claimed, kind="state")


def test_autocast_takes_what_the_device_computes(amp: SuiteAmp) -> None:
    """The device computes the dtype under test, and a region in it stays on and returns it."""
    assert torch.amp.is_autocast_available(amp.device.type)
    assert _computes(amp.dtype, amp.device.torch_device)
    with amp.autocast():
        assert torch.is_autocast_enabled(amp.device.type)
        x = torch.ones(8, 8, device=amp.device.torch_device)
        assert (x @ x).dtype is amp.dtype


@pytest.mark.amp(devices=["cpu"])  # CUDA does not check the dtype, except for support of bf16 (torch 2.11)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float64], ids=str)
def test_a_region_refuses_other_dtypes(amp: SuiteAmp, dtype: torch.dtype) -> None:
    """A region with an unsupported dtype warns, and is off: no operator has a rule for eight bits."""
    with pytest.warns(UserWarning, match=r"(?i)autocast"), torch.autocast(amp.device.type, dtype):
        assert not torch.is_autocast_enabled(amp.device.type)


def test_the_default_autocast_dtype_computes(amp: SuiteAmp) -> None:
    """A region without a dtype gets fp16 on CUDA, bf16 on the CPU (at::autocast::get_autocast_dtype)."""
    default = torch.get_autocast_dtype(amp.device.type)
    expected = {"cpu": torch.bfloat16, "cuda": torch.float16, "xpu": torch.float16}.get(amp.device.type, default)
    assert default is expected
    assert _computes(default, amp.device.torch_device)


def test_tf32_is_claimed_by_hardware_that_has_it(amp: SuiteAmp) -> None:
    """``torch.cuda.is_tf32_supported`` (torch 2.7) is False without CUDA, True from compute capability 8.0 on."""
    query = getattr(torch.cuda, "is_tf32_supported", None)
    if query is None:
        pytest.skip(f"torch {torch.__version__} has no is_tf32_supported")
    has = amp.device.kind is DeviceKind.ACCELERATOR and torch.cuda.is_available() and torch.version.hip is None
    assert bool(query()) == (has and torch.cuda.get_device_capability() >= (8, 0))
