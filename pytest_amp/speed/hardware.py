"""What a device computes in hardware, and so what its speed can be held against."""

from __future__ import annotations

import torch

from pytest_amp.devices import Device
from pytest_amp.precision import BF16, Precision

#: The first compute capability with TF32 (and bf16) in hardware: Ampere's.
AMPERE = (8, 0)


def kinds_of_float32(device: Device, precision: Precision) -> tuple[str, ...]:
    """The kinds of float32 that ``precision`` may be compared with: ``"fp32"``, and ``"tf32"`` where it exists.

    None where ``precision`` itself is emulated, as bf16 is before Ampere: there no floor can hold.
    """
    if device.type != "cuda":
        return ("fp32",)
    if precision == BF16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return ()
    has_tf32 = torch.cuda.get_device_capability(device.torch_device) >= AMPERE
    return ("fp32", "tf32") if has_tf32 else ("fp32",)
