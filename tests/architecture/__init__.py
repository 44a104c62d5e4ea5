"""Rules of the code base that no single file shows: allowed imports, and similar conventions."""

from __future__ import annotations
