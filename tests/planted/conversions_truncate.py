"""float32 becomes bf16 by losing its lower half: the digits are cut off, and nothing is rounded."""

from __future__ import annotations

from kernels import truncate_conversions

truncate_conversions()
