"""A compiled function runs in the region in which it was called first, as if its code had no guard on autocast."""

from __future__ import annotations

from compiling import in_the_first, wrap_compiled

wrap_compiled(in_the_first)
