"""A pytest plugin and a regression suite for mixed precision in PyTorch.

Importing this package imports neither torch nor pytest: each public name is imported on first use (PEP 562).
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, true for type checkers; importing it would slow the start of pytest
if TYPE_CHECKING:
    from pytest_amp.amp import Amp as Amp
    from pytest_amp.cases import Case as Case
    from pytest_amp.failure import AmpFailure as AmpFailure
    from pytest_amp.failure import AmpUsageError as AmpUsageError
    from pytest_amp.record import read_record as read_record

__all__ = ["Amp", "AmpFailure", "AmpUsageError", "Case", "__version__", "read_record"]

__version__ = "0.1.0"

_HOMES = {
    "Amp": "pytest_amp.amp",
    "AmpFailure": "pytest_amp.failure",
    "AmpUsageError": "pytest_amp.failure",
    "Case": "pytest_amp.cases",
    "read_record": "pytest_amp.record",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import the module that defines a public name, on first access."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return the names of the module with those that are imported on first use."""
    return sorted({*globals(), *_HOMES})
