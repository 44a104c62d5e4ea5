"""Binary floating-point formats and rounding to them, without torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pytest_amp.precision import BinaryFormat

Doubles: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Patterns: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"


class Overflow(enum.Enum):
    """Result of rounding a value beyond the largest finite number."""

    #: The format's infinity or, in a format that has none, NaN.
    SPECIAL = "infinity, or NaN where there is none"
    #: The largest finite number, also for an infinite input.
    SATURATE = "the largest finite number"


@dataclass(frozen=True)
class Format(BinaryFormat):
    """Sign, exponent and mantissa: IEEE 754-2019 section 3.4, except for formats without ``infinities``.

    ``infinities`` is False for a format that has finite numbers with the largest exponent: only the mantissa of all
    ones is NaN there (E4M3 of Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1). float64 represents
    every value of these formats. ``dtype_name`` is torch's name of the dtype that stores the format.
    """

    name: str
    dtype_name: str
    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True

    @property
    def bias(self) -> int:
        """Exponent bias, subtracted from the stored exponent."""
        return int(2 ** (self.exponent_bits - 1) - 1)

    @property
    def max(self) -> float:
        """The largest finite number: all ones but, without infinities, the last mantissa bit."""
        if self.infinities:
            return (2.0 - self.eps) * float(2.0**self.bias)
        return (2.0 - 2 * self.eps) * float(2.0 ** (self.bias + 1))

    @property
    def overflows_at(self) -> float:
        """Half a step above ``max``: larger values overflow.

        The value itself is a tie; it overflows, too, except in E4M3, where ``max`` is even.
        """
        return self.max + self.step_at_max / 2

    @property
    def step_at_max(self) -> float:
        """Distance from ``max`` to the number before it."""
        return self.eps * float(2.0 ** (self.bias if self.infinities else self.bias + 1))

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a full mantissa."""
        return float(2.0 ** (1 - self.bias))

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, and the distance between subnormal numbers."""
        return self.smallest_normal * self.eps

    def decode(self, patterns: Patterns) -> Doubles:
        """Return the values of bit patterns."""
        sign = np.where(patterns >> (self.bits - 1) & 1, -1.0, 1.0)
        exponent = patterns >> self.mantissa_bits & (1 << self.exponent_bits) - 1
        mantissa = patterns & (1 << self.mantissa_bits) - 1
        subnormal = mantissa * self.smallest_subnormal
        normal = np.ldexp(1.0 + mantissa * self.eps, (exponent - self.bias).astype(np.int32))
        value = np.where(exponent == 0, subnormal, normal)
        top = exponent == (1 << self.exponent_bits) - 1
        if self.infinities:
            value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
        else:
            value = np.where(top & (mantissa == (1 << self.mantissa_bits) - 1), np.nan, value)
        return sign * value

    def round(self, values: Doubles, overflow: Overflow = Overflow.SPECIAL) -> Doubles:
        """Round each value once to the nearest number of the format, ties to even.

        A float64 divided by the step of its binade is exact, and so is the product: only ``rint`` rounds.
        """
        finite = np.where(np.isfinite(values), values, 0.0)
        _, exponent = np.frexp(finite)  # 0.5 <= |fraction| < 1
        step = np.ldexp(1.0, np.maximum(exponent - 1, 1 - self.bias) - self.mantissa_bits)
        rounded = np.copysign(np.rint(finite / step) * step, values)
        beyond = (np.abs(rounded) > self.max) | np.isinf(values)
        if overflow is Overflow.SATURATE:
            special = np.copysign(self.max, values)
        else:
            special = np.copysign(np.inf, values) if self.infinities else np.full_like(values, np.nan)
        result: Doubles = np.where(np.isnan(values), np.nan, np.where(beyond, special, rounded))
        return result


FP32 = Format("fp32", "float32", 8, 23)
#: The format to which a product rounds its float32 inputs: fp32's exponent, fp16's mantissa. Tensors stay float32.
TF32 = Format("tf32", "float32", 8, 10)
BF16 = Format("bf16", "bfloat16", 8, 7)
FP16 = Format("fp16", "float16", 5, 10)
FLOAT8_E4M3FN = Format("float8_e4m3fn", "float8_e4m3fn", 4, 3, infinities=False)
FLOAT8_E5M2 = Format("float8_e5m2", "float8_e5m2", 5, 2)

FORMATS = {form.name: form for form in (FP32, TF32, BF16, FP16, FLOAT8_E4M3FN, FLOAT8_E5M2)}
