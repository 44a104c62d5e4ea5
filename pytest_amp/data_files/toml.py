"""Import of TOML from the library that this Python has."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from tomllib import loads
else:  # the standard library has it since 3.11
    from tomli import loads  # type: ignore[import-not-found,unused-ignore]

__all__ = ["loads"]
