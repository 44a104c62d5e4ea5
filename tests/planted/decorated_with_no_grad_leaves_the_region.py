"""A function that is decorated with ``no_grad`` or ``inference_mode`` runs outside of every region."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from overriding import outside_of_regions


def _leaving(before: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(before)
    def decorate(self: Any, function: Any) -> Any:
        decorated: Any = before(self, outside_of_regions(function))
        return decorated

    return decorate


for _class in (torch.no_grad, torch.inference_mode):
    _untyped: Any = _class
    _untyped.__call__ = _leaving(_untyped.__call__)
