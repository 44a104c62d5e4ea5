"""Provenance of results, which must be the same for a run to be resumed."""

from __future__ import annotations

import torch

from pytest_amp.devices import Device


def of(device: Device) -> dict[str, str]:
    """Return torch's version and the device's own provenance."""
    return {"torch": str(torch.__version__), **device.provenance()}
