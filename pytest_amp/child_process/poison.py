"""Devices that no longer answer: after some errors every later call in the process fails, too."""

from __future__ import annotations

#: Exit status of a child whose device no longer answers.
POISONED = 66


def is_sticky(error: BaseException) -> bool:
    """Return whether an error is sticky: every later call on the device in this process would fail, too."""
    text = str(error)
    return type(error).__name__ == "AcceleratorError" or text.startswith(("CUDA error", "HIP error"))
