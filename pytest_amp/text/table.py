"""Aligned columns of text, as the results of checks print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def as_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return ``rows`` below ``head`` in columns as wide as their widest cell, without trailing blanks."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def in_bytes(count: int) -> str:
    """Return a number of bytes as a table shows it: ``384 B``, ``1.5 KiB``, ``12.0 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
