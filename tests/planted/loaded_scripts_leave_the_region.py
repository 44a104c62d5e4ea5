"""A script that was saved and loaded runs outside of every region."""

from __future__ import annotations

from typing import Any

import torch
from overriding import outside_of_regions

_jit: Any = torch.jit
_before: Any = torch.jit.load


def _load(*args: Any, **kwargs: Any) -> Any:
    return outside_of_regions(_before(*args, **kwargs).forward)


_jit.load = _load
