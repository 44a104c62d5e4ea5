"""Precisions that a device computes in hardware, and the kinds of float32 to compare its speed with."""

from __future__ import annotations

import torch

from pytest_amp.devices import Device
from pytest_amp.precision import BF16, Precision

#: The first compute capability with TF32 (and bf16) in hardware: Ampere's.
AMPERE = (8, 0)


def kinds_of_float32(device: Device, precision: Precision) -> tuple[str, ...]:
    """Return the kinds of float32 to compare ``precision`` with: ``"fp32"``, and ``"tf32"`` if the device has it.

    The result is empty if ``precision`` itself is emulated, as bf16 before Ampere: a speedup cannot be expected.
    """
    if device.type != "cuda":
        return ("fp32",)
    if precision == BF16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return ()
    has_tf32 = torch.cuda.get_device_capability(device.torch_device) >= AMPERE
    return ("fp32", "tf32") if has_tf32 else ("fp32",)
