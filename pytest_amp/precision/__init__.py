"""Precisions: number formats and their names in options, and the float32 arithmetic of a process."""

from pytest_amp.precision.formats import (
    ALIASES,
    BF16,
    DECIMAL,
    FP16,
    FP32,
    LOW,
    PRECISIONS,
    TF32,
    BinaryFormat,
    Precision,
    dtype_name,
)

__all__ = [
    "ALIASES",
    "BF16",
    "DECIMAL",
    "FP16",
    "FP32",
    "LOW",
    "PRECISIONS",
    "TF32",
    "BinaryFormat",
    "Precision",
    "dtype_name",
]
