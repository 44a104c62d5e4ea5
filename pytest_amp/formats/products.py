"""Infer from the results of a matrix product how its kernel rounds the inputs and the sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Rows and columns of a product: enough to select the kernels that training uses.
SIZE = 256
#: Number of terms of a sum: enough for a kernel to split it into many partial sums.
LENGTH = 4096


def product_of(values: Sequence[float], device: torch.device, dtype: torch.dtype) -> list[float]:
    """Multiply each value by one in a matrix product, which shows how the kernel rounds its inputs.

    There may be at most ``SIZE`` values; all other terms of the sums are zero.
    """
    left = torch.eye(SIZE, device=device, dtype=dtype)
    right = torch.zeros(SIZE, SIZE, device=device, dtype=dtype)
    right[: len(values), 0] = torch.tensor(values, dtype=torch.float64).to(dtype).to(device)
    values_of_product: list[float] = (left @ right)[: len(values), 0].double().tolist()
    return values_of_product


def visible_bits(device: torch.device, dtype: torch.dtype) -> int:
    """Return how many mantissa bits of its inputs a product uses: the largest ``bits`` with 1 + 2**-bits exact."""
    candidates = list(range(1, 24))
    sums = product_of([1 + 2.0**-bits for bits in candidates], device, dtype)
    visible = [bits for bits, value in zip(candidates, sums, strict=True) if value == 1 + 2.0**-bits]
    return max(visible, default=0)


def survives(exponent: int, device: torch.device, dtype: torch.dtype, *, rows: int = SIZE) -> bool:
    """Return whether a product's accumulator resolves 2**-exponent next to one: 1 + 2**-exponent - 1 in a long sum.

    The three terms are placed far apart, since tensor cores add the terms of a block with more bits than they keep
    between blocks.
    ``rows`` is the size of the result, which selects the kernel on an accelerator; on a CPU it affects only the time.
    """
    left = torch.zeros(rows, LENGTH, device=device, dtype=dtype)
    right = torch.zeros(LENGTH, rows, device=device, dtype=dtype)
    half = exponent // 2
    terms = {0: (1.0, 1.0), LENGTH // 4: (2.0**-half, 2.0 ** (half - exponent)), LENGTH - 100: (-1.0, 1.0)}
    for place, (a, b) in terms.items():
        left[:, place] = a
        right[place] = b
    return float((left @ right)[0, 0]) == 2.0**-exponent
