"""Libraries that only some checks need, from an extra of the distribution."""

from __future__ import annotations

import importlib
from types import ModuleType

from pytest_amp.failure import AmpFailure


def imported(module: str, *, what: str, extra: str) -> ModuleType:
    """Import ``module``. Raises AmpFailure naming ``extra`` if a library that it needs is not installed.

    ``what`` names the check that needs it, for the message.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise AmpFailure(
            f"{what}: {missing.name} is not installed",
            likely=f"the extra is missing: pip install 'pytest-amp[{extra}]'",
        ) from missing
