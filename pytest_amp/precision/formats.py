"""Number formats of arithmetic, and their names in options.

Pure data: torch is imported only when a dtype is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: A number as options take it: ASCII digits, without the underscores that Python's own ``float`` accepts.
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class BinaryFormat:
    """Binary format of a sign, ``exponent_bits`` and ``mantissa_bits``, stored in the torch dtype ``dtype_name``."""

    dtype_name: str
    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        """Width of the format that is used in a product: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def eps(self) -> float:
        """Distance from 1.0 to the next larger number."""
        return float(2.0**-self.mantissa_bits)

    @property
    def u(self) -> float:
        """Unit roundoff: the largest relative error of rounding a normal number to nearest (half of ``eps``)."""
        return self.eps / 2

    @property
    def dtype(self) -> torch.dtype:
        """Return the torch dtype of tensors in this format (imports torch)."""
        import torch

        dtype = getattr(torch, self.dtype_name)
        assert isinstance(dtype, torch.dtype)
        return dtype


@dataclass(frozen=True)
class Precision(BinaryFormat):
    """How arithmetic is done: ``fp32`` (IEEE), ``tf32``, ``bf16`` or ``fp16``.

    ``exponent_bits`` and ``mantissa_bits`` are the stored bits of IEEE 754-2019 section 3.4 (fp32,
    fp16), of bfloat16 (fp32 with its mantissa cut to 7 bits) and of TF32 (fp32's exponent, fp16's
    mantissa; tensors stay float32, only products are rounded).
    """

    name: str
    dtype_name: str
    exponent_bits: int
    mantissa_bits: int
    enter: Callable[[], AbstractContextManager[None]] | None = field(default=None, compare=False, repr=False)

    def context(self) -> AbstractContextManager[None]:
        """The scope in which a device computes in this precision: an autocast region, or fp32 arithmetic of one kind.

        Only a precision that a fixture gave knows its device; any other raises RuntimeError.
        """
        if self.enter is None:
            raise RuntimeError(f"{self.name} is bound to no device; take it from the fixture amp_precision")
        return self.enter()

    @property
    def max(self) -> float:
        """Largest finite number."""
        return (2.0 - self.eps) * float(2.0 ** (2 ** (self.exponent_bits - 1) - 1))

    @property
    def smallest_normal(self) -> float:
        """Smallest positive number with a full mantissa."""
        return float(2.0 ** (2 - 2 ** (self.exponent_bits - 1)))

    @property
    def is_low(self) -> bool:
        """Whether this is an autocast dtype: a 16-bit format that tensors are stored in."""
        return self.dtype_name != "float32"


FP32 = Precision("fp32", "float32", 8, 23)
TF32 = Precision("tf32", "float32", 8, 10)
BF16 = Precision("bf16", "bfloat16", 8, 7)
FP16 = Precision("fp16", "float16", 5, 10)

PRECISIONS = {precision.name: precision for precision in (FP32, TF32, BF16, FP16)}
LOW = {name: precision for name, precision in PRECISIONS.items() if precision.is_low}

#: Every spelling that an option, an ini key or a marker accepts, torch's own names included.
ALIASES = {
    **LOW,
    **{precision.dtype_name: precision for precision in LOW.values()},
    **{f"torch.{precision.dtype_name}": precision for precision in LOW.values()},
    "half": FP16,
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as observations and messages use it: ``bfloat16`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
