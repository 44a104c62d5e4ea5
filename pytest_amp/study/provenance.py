"""Where results come from: what has to be the same for a run to go on."""

from __future__ import annotations

import torch

from pytest_amp.devices import Device


def of(device: Device) -> dict[str, str]:
    """What torch it is, and the device's own provenance."""
    return {"torch": str(torch.__version__), **device.provenance()}
