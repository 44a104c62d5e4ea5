"""Regions of autocast that a program enters, by ``with`` or by a decorator, and the line of each."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from pytest_amp.numerics.callers import Author, author_of, calling_line, short


@contextlib.contextmanager
def followed_autocast(
    enter: Callable[[Any, Callable[[], Any], FrameType], Any], leave: Callable[[Any], None]
) -> Iterator[None]:
    """Report each region entered or left inside the block.

    ``enter`` receives the region, a function that enters it, whose result it returns, and the frame that enters it;
    ``leave`` receives the region before it is left.
    """
    autocast: Any = torch.autocast
    enter_region, leave_region = autocast.__enter__, autocast.__exit__

    def entering(region: Any) -> Any:
        return enter(region, lambda: enter_region(region), sys._getframe(1))  # noqa: SLF001  # as inspect.currentframe

    def leaving(region: Any, *error: Any) -> Any:
        leave(region)
        return leave_region(region, *error)

    autocast.__enter__, autocast.__exit__ = entering, leaving
    try:
        yield
    finally:
        autocast.__enter__, autocast.__exit__ = enter_region, leave_region


def decorated_code(frame: FrameType) -> CodeType | None:
    """Return the code of the user's function that a region decorates, if ``frame`` enters the region for it.

    The call of such a function passes through torch alone: no frame of it is the line of the decorator.
    """
    function = frame.f_locals.get("func") if frame.f_code.co_name == "decorate_autocast" else None
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) and author_of(code.co_filename) is Author.USER else None


def line_of_region(frame: FrameType) -> str | None:
    """Return the line of the ``with``, or of the decorated function, of a region that ``frame`` enters."""
    code = decorated_code(frame)
    return calling_line() if code is None else f"{short(code.co_filename)}:{code.co_firstlineno}"
