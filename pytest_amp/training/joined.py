"""Small tensors joined to larger ones, so that statistics of a model's parameters need few operator calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

#: Maximum number of elements of tensors that are joined: copies of larger tensors cost more than they save.
_LARGEST = 2**18


def joined(*columns: Sequence[torch.Tensor], largest: int = _LARGEST) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield ``columns`` in parts, each part a flat tensor for each column.

    A part has consecutive rows on one device, of at most ``largest`` elements together; a larger tensor is a part by
    itself. The tensors of a row have the same shape.
    """
    part: list[tuple[torch.Tensor, ...]] = []
    size = 0
    for row in zip(*columns, strict=True):
        if part and (row[0].device != part[0][0].device or size + row[0].numel() > largest):
            yield _flat(part)
            part, size = [], 0
        part.append(row)
        size += row[0].numel()
    if part:
        yield _flat(part)


def added(statistics: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of small tensors of one shape, on the device of the first: a model may have several."""
    return torch.stack([statistic.to(statistics[0].device) for statistic in statistics]).sum(0)


def _flat(rows: Sequence[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """Return the columns of ``rows``, each as one flat tensor: a view for one row."""
    if len(rows) == 1:
        return tuple(tensor.flatten() for tensor in rows[0])
    return tuple(torch.cat([tensor.flatten() for tensor in column]) for column in zip(*rows, strict=True))
