"""What a matrix product does with its inputs and its sums, seen from its results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Rows and columns of a product that is large enough for the kernels that trainings get.
SIZE = 256
#: Terms of a sum that a kernel adds in many parts.
LENGTH = 4096


def product_of(values: Sequence[float], device: torch.device, dtype: torch.dtype) -> list[float]:
    """Each value times one, as elements of a matrix product: what the kernel rounds its inputs to is what is left.

    At most ``SIZE`` values; every other term of the sums is zero.
    """
    left = torch.eye(SIZE, device=device, dtype=dtype)
    right = torch.zeros(SIZE, SIZE, device=device, dtype=dtype)
    right[: len(values), 0] = torch.tensor(values, dtype=torch.float64).to(dtype).to(device)
    found: list[float] = (left @ right)[: len(values), 0].double().tolist()
    return found


def visible_bits(device: torch.device, dtype: torch.dtype) -> int:
    """How many mantissa bits of its inputs a product looks at: the last bit that is still there in 1 + 2**-bits."""
    candidates = list(range(1, 24))
    found = product_of([1 + 2.0**-bits for bits in candidates], device, dtype)
    seen = [bits for bits, value in zip(candidates, found, strict=True) if value == 1 + 2.0**-bits]
    return max(seen, default=0)


def survives(exponent: int, device: torch.device, dtype: torch.dtype, *, rows: int = SIZE) -> bool:
    """Whether the sum of a product keeps 2**-exponent beside one: 1 + 2**-exponent - 1, far apart in a long sum.

    Neighbouring terms would not do: tensor cores add those of a block with more bits than they keep between blocks.
    ``rows`` is the size of the result, which decides the kernel on an accelerator, and only time on a CPU.
    """
    left = torch.zeros(rows, LENGTH, device=device, dtype=dtype)
    right = torch.zeros(LENGTH, rows, device=device, dtype=dtype)
    half = exponent // 2
    terms = {0: (1.0, 1.0), LENGTH // 4: (2.0**-half, 2.0 ** (half - exponent)), LENGTH - 100: (-1.0, 1.0)}
    for place, (a, b) in terms.items():
        left[:, place] = a
        right[place] = b
    return float((left @ right)[0, 0]) == 2.0**-exponent
