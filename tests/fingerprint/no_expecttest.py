"""Stand-in for a Python without expecttest."""

from __future__ import annotations

import sys

sys.modules["expecttest"] = None  # type: ignore[assignment]  # import raises ImportError
