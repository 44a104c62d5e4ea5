"""Kernels of 16-bit formats: exact where nothing rounds, as near float64 as their format allows elsewhere.

No autocast is involved, or it changes nothing that is checked here: mixed precision rests on these kernels, and the
other families check mixed precision. On a CPU the family belongs to the long tier.
"""

from __future__ import annotations

from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("kernels", long_on=frozenset({DeviceKind.CPU}))
