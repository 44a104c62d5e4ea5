"""Regions of two device types nest freely: each device computes as its own innermost region says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import FAKE_TYPES, Device, DeviceKind, find_device
from pytest_amp.precision import dtype_name
from pytest_amp.run.targets import Target
from pytest_amp.torch_private import recorded_calls

from .state import OTHER, expect_state, product_dtype


def _remaining_devices(target: Target) -> Iterator[str]:
    """Yield the second device: the CPU for an accelerator, real or fake; each fake accelerator for the CPU."""
    if target.device.kind is not DeviceKind.CPU:
        yield "cpu"
        return
    for device_type in FAKE_TYPES:
        if torch.amp.is_autocast_available(device_type):
            yield f"fake:{device_type}"


@contextmanager
def _tensors(*devices: Device) -> Iterator[None]:
    """Return the scope in which both devices have tensors: fake ones if one of them is fake."""
    fake = next((device for device in devices if device.kind is DeviceKind.FAKE), devices[0])
    with fake.tensors():
        yield


def _look(*devices: Device) -> list[tuple[bool, str, str]]:
    return [
        (
            torch.is_autocast_enabled(device.type),
            dtype_name(torch.get_autocast_dtype(device.type)),
            dtype_name(product_dtype(device.torch_device)),
        )
        for device in devices
    ]


@pytest.mark.amp(fake=True)
@pytest.mark.amp_parametrize("other", _remaining_devices)
@pytest.mark.parametrize("inner", ["other", "this"])
def test_each_device_follows_its_own_region(amp: SuiteAmp, other: str, inner: str) -> None:
    """The other device's region has the other dtype, which detects a mix-up."""
    this, that = amp.device, find_device(other)
    regions = {"this": lambda: this.autocast(amp.dtype), "other": lambda: that.autocast(OTHER[amp.dtype])}
    outer = "this" if inner == "other" else "other"
    default = {device.type: dtype_name(torch.get_autocast_dtype(device.type)) for device in (this, that)}
    off = {key: (False, default[device.type], "float32") for key, device in (("this", this), ("other", that))}
    on = {
        key: (True, dtype_name(dtype), dtype_name(dtype))
        for key, dtype in (("this", amp.dtype), ("other", OTHER[amp.dtype]))
    }
    with _tensors(this, that):
        before = _look(this, that)
        with regions[outer]():
            first = _look(this, that)
            with regions[inner]():
                both = _look(this, that)
            left = _look(this, that)
        after = _look(this, that)
    only_outer = [on[key] if key == outer else off[key] for key in ("this", "other")]
    outside = [off["this"], off["other"]]
    amp.observe(f"{other} {inner} inside", [list(row) for row in both], kind="state")
    expect_state(
        amp,
        f"of ({this.key}, {other}) outside, in the outer region ({outer}), in both, in the outer one again, outside",
        [before, first, both, left, after],
        [outside, only_outer, [on["this"], on["other"]], only_outer, outside],
        likely="a region of one device type reads or writes the state of another",
    )


@pytest.mark.amp(devices=["cuda"])
def test_a_region_is_for_every_device_of_its_type(amp: SuiteAmp) -> None:
    """Weights on a second GPU have their own cached copy, and the region applies to both devices."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two CUDA devices, there is {torch.cuda.device_count()}")
    first = torch.nn.Linear(8, 24, bias=False, device="cuda:0")
    second = torch.nn.Linear(8, 24, bias=False, device="cuda:1")
    batch = torch.randn(4, 8)
    with recorded_calls() as calls, amp.autocast():
        actual = [layer(batch.to(layer.weight.device)) for layer in (first, second, first, second)]
    casts = [call for call in calls if call.operator == "aten::_to_copy" and call.tensors[:1] == ("float32[24, 8]",)]
    assert [(output.dtype, output.device) for output in actual] == [
        (amp.dtype, layer.weight.device) for layer in (first, second, first, second)
    ]
    assert len(casts) == 2
    with torch.cuda.device(1), amp.autocast():
        assert product_dtype(torch.device("cuda:0")) is product_dtype(torch.device("cuda:1")) is amp.dtype


@pytest.mark.amp(fake=True)
@pytest.mark.amp_parametrize("other", _remaining_devices)
def test_disabling_one_device_leaves_the_other_on(amp: SuiteAmp, other: str) -> None:
    this, that = amp.device, find_device(other)
    regions = this.autocast(amp.dtype), that.autocast(OTHER[amp.dtype]), that.autocast(amp.dtype, enabled=False)
    with _tensors(this, that), regions[0], regions[1], regions[2]:
        actual = [product_dtype(device.torch_device) for device in (this, that)]
    expect_state(
        amp,
        f"as products of ({this.key}, {other}) show it, the latter disabled",
        actual,
        [amp.dtype, torch.float32],
        likely="enabled=False acts on every device type",
    )
