"""The speedup that a card's arithmetic allows: the ratio of its peak rates, from a data file."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib import resources

#: Largest speedup of memory-bound work on any card: 16-bit tensors have half the bytes.
MEMORY_BOUND = 2.0


@dataclass(frozen=True)
class Peaks:
    """Dense peak rates of one card by precision, in 10^12 operations per second; None without hardware."""

    name: str
    match: str
    rates: dict[str, float | None]
    sources: tuple[str, ...]

    def ceiling(self, versus: str, precision: str) -> float | None:
        """Return the speedup of ``precision`` over ``versus`` (``"fp32"``, ``"tf32"``) that the card allows.

        It is None if the card does not compute ``precision`` in hardware; without TF32 hardware, ``"tf32"`` is IEEE
        fp32.
        """
        rate = self.rates[precision]
        reference = self.rates[versus] or self.rates["fp32"]
        if rate is None or reference is None:
            return None
        return max(rate / reference, MEMORY_BOUND)


@functools.cache
def all_peaks() -> tuple[Peaks, ...]:
    """Load every card in gpu_peaks.json."""
    text = resources.files(__package__).joinpath("gpu_peaks.json").read_text(encoding="utf-8")
    return tuple(
        Peaks(
            name=row["name"],
            match=row["match"],
            rates={precision: row[precision] for precision in ("fp32", "tf32", "bf16", "fp16")},
            sources=tuple(row["sources"]),
        )
        for row in json.loads(text)["gpus"]
    )


def peaks_of(device_name: str) -> Peaks | None:
    """Return the card with the driver's name ``device_name`` (``NVIDIA H100 80GB HBM3``); None if it is not listed."""
    return next((peaks for peaks in all_peaks() if re.search(peaks.match, device_name)), None)
