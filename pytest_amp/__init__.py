"""A pytest plugin and a regression suite for mixed precision in PyTorch.

Importing this package imports neither torch nor numpy, and its record reader only as it is asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, which is true for type checkers: to import it would cost every pytest its time
if TYPE_CHECKING:
    from pytest_amp.record import read_record as read_record

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """``read_record``: the reader of what --amp-record wrote, imported when it is asked for (PEP 562)."""
    if name == "read_record":
        from pytest_amp.record import read_record

        return read_record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
