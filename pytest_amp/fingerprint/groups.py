"""Groups of entries, one for each test of the suite, so that workers can share them.

Groups depend on names only: the collection of tests must not import torch's own tests.
"""

from __future__ import annotations

_NAMESPACES = ("fft", "linalg", "masked", "signal", "special")
#: The last initial letter of each group, by kind of name.
_LETTERS = {
    "modules": "ksz",
    "functional": "fkmz",
    "": "chmrz",
}

GROUPS = (
    "a-c", "d-h", "i-m", "n-r", "s-z", "fft", "linalg", "masked", "signal", "special",
    "functional.a-f", "functional.g-k", "functional.l-m", "functional.n-z", "modules.a-k", "modules.l-s", "modules.t-z",
)  # fmt: skip


def group_of(name: str) -> str:
    """Return the group of an entry: each has exactly one."""
    first, _, rest = name.partition(".")
    if first in _NAMESPACES and rest:
        return first
    if name.startswith("nn.functional."):
        return _by_letter("functional", name.removeprefix("nn.functional."))
    if first == "nn" and rest:
        return _by_letter("modules", rest)
    return _by_letter("", name)


def _by_letter(kind: str, name: str) -> str:
    """Return the group of a name by its first letter; leading underscores (``__getitem__``) are ignored."""
    letter = name.strip("_")[:1].lower()
    start = "a"
    for last in _LETTERS[kind]:
        if letter <= last:
            break
        start = chr(ord(last) + 1)
    else:
        last = _LETTERS[kind][-1]
    return f"{kind}.{start}-{last}" if kind else f"{start}-{last}"
