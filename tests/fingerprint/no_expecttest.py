"""A Python in which expecttest is not installed."""

from __future__ import annotations

import sys

sys.modules["expecttest"] = None  # type: ignore[assignment]  # import raises ImportError
