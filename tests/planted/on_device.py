"""The device type whose autocast most planted defects break: the CPU, or that of tests/planted_on_device.py."""

from __future__ import annotations

import os

VARIABLE = "PLANTED_ON"

DEVICE = os.environ.get(VARIABLE, "cpu")
