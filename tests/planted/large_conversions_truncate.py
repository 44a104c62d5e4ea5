"""Tensors of more than a hundred thousand float32 numbers become bf16 by losing their lower halves."""

from __future__ import annotations

from kernels import truncate_conversions

truncate_conversions(lambda x: x.numel() > 100_000)
