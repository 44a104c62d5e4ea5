"""``torch.prod`` of a whole tensor leaves its last number out."""

from __future__ import annotations

from typing import Any

import torch

_untyped: Any = torch
_prod = torch.prod


def _without_the_last(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args or kwargs or x.numel() < 2:
        return _prod(x, *args, **kwargs)
    return _prod(x.flatten()[:-1])


_untyped.prod = _without_the_last
