"""Words of a failure that name its device and dtype, which do not distinguish causes."""

from __future__ import annotations

import re

_PLACE = re.compile(
    r"\bautocast\(\w+, \w+\)|\b(?:fake[-:])?(?:cpu|cuda|xpu|mps|mtia|[a-z]\w*)-(?:bf16|fp16|fp32|tf32)\b"
    r"|\b(?:fake[-:])?(?:cpu|cuda|xpu|mps|mtia)\b|\bb?float16\b|\b(?:bf16|fp16)\b"
)


def without_places(what: str) -> str:
    """Return the text of a failure without device and dtype, equal for all failures of its cause."""
    return _PLACE.sub("", what)
