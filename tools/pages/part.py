"""Part of a page between two marks, which a program writes."""

from __future__ import annotations


def replaced(page: str, name: str, block: str) -> str:
    """Replace the part of ``page`` between ``<!-- name -->`` and ``<!-- end -->``. Raises ValueError without one."""
    start, end = f"<!-- {name} -->", "<!-- end -->"
    before, marker, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not marker or not closed:
        raise ValueError(f"the page has no part between {start} and {end}")
    return f"{before}{start}\n{block}\n{end}{after}"
