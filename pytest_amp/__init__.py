"""A pytest plugin and a regression suite for mixed precision in PyTorch.

Importing this package imports neither torch nor numpy; the reader of records is imported on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, true for type checkers; importing it would slow the start of pytest
if TYPE_CHECKING:
    from pytest_amp.record import read_record as read_record

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import ``read_record``, the reader of --amp-record files, on first access (PEP 562)."""
    if name == "read_record":
        from pytest_amp.record import read_record

        return read_record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
