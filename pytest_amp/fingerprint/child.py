"""The child process of a sweep, which lists the entries and computes the fingerprint of an entry."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from pytest_amp.devices import FAKE_TYPES, Device, DeviceKind
from pytest_amp.fingerprint.dtypes import NOT, joined
from pytest_amp.fingerprint.observation import calls_of, patterns_of
from pytest_amp.torch_private import PrivateApiGone, fake_tensors, testing


def answer(request: Mapping[str, Any], device: Device) -> object:
    """Answer a request of ``pytest_amp.fingerprint.sweep``.

    Without a name, the answer is the list of entries, or the reason why it cannot be read. With a name, it is the
    number of samples; with a name and a dtype, the fingerprint of all samples, or of the sample with the requested
    number.
    """
    if device.kind is not DeviceKind.ACCELERATOR:
        _prepare()
    name = request.get("name")
    if name is None:
        return _entries()
    calls = calls_of(name, device.name)
    if "dtype" not in request:
        return 0 if isinstance(calls, str) else len(calls)
    if isinstance(calls, str):
        return calls
    number = request.get("sample")
    looked_at = calls if number is None else [calls[number]]
    patterns, failed = patterns_of(looked_at, device, getattr(torch, request["dtype"]))
    return joined(patterns) if patterns else f"{NOT}{failed}"


def _entries() -> dict[str, object]:
    try:
        return {"operators": sorted(testing.operator_entries()), "modules": sorted(testing.module_entries())}
    except PrivateApiGone as gone:
        return {"unavailable": str(gone)}


@functools.cache
def _prepare() -> None:
    """Prepare a process without accelerators once: make fake tensors safe, and seeding fast, which samples do often."""
    fake_tensors.install_device_guards(FAKE_TYPES)
    torch.manual_seed = torch.default_generator.manual_seed
