"""Number formats implemented bit by bit in numpy, a reference for torch's conversions and kernels."""

from pytest_amp.formats.conversion import converted, from_patterns, patterns_of
from pytest_amp.formats.format import (
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FORMATS,
    FP32,
    TF32,
    Format,
    Overflow,
)
from pytest_amp.formats.neighbours import Neighbours, neighbours
from pytest_amp.formats.products import SIZE, product_of, survives, visible_bits

__all__ = [
    "FLOAT8_E4M3FN",
    "FLOAT8_E5M2",
    "FORMATS",
    "FP16",
    "FP32",
    "SIZE",
    "TF32",
    "Format",
    "Neighbours",
    "Overflow",
    "converted",
    "from_patterns",
    "neighbours",
    "patterns_of",
    "product_of",
    "survives",
    "visible_bits",
]
