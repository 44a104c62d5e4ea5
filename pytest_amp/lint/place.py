"""Place of a call in Python: the user's line and function, and the line of a library that makes the call."""

from __future__ import annotations

import enum
import functools
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import torch

_TORCH = f"{Path(torch.__file__).parent}/"
_PACKAGE = f"{Path(__file__).parent.parent}/"
_CASES = f"{_PACKAGE}cases/"
_PYTHON = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = tuple({f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")})
#: Module that calls the user's functions; outer frames belong to the test.
RUNNER = f"{Path(__file__).parent / 'runs.py'}"
#: Modules through which autograd's engine is entered.
_ENGINE = (f"{_TORCH}autograd/__init__.py", f"{_TORCH}autograd/graph.py")
#: torch's Python code between a caller and the operator that it calls by name.
_WRAPPERS = (f"{_TORCH}_tensor.py", f"{_TORCH}overrides.py", f"{_TORCH}functional.py", f"{_TORCH}nn/functional.py")


class Author(enum.Enum):
    """Author of a source file: the user, an installed library, torch, or anything else."""

    USER = "user"
    LIBRARY = "library"
    TORCH = "torch"
    OTHER = "other"


@dataclass(frozen=True)
class Place:
    """Place of a call.

    Fields
    ------
    line:
        The user's innermost line as ``file.py:12``; ``""`` where no frame is the user's.
    function:
        Name of the function of that line.
    outer:
        The user's outermost line: of the training step, the evaluation or the loss.
    library:
        Line of an installed library that makes the call for the user; ``""`` where the user makes it.
    key:
        File and first line of the function that makes the call, the library's where there is one.
    is_torch:
        Whether torch's own Python code makes the call, beyond thin wrappers of operators.
    """

    line: str = ""
    function: str = ""
    outer: str = ""
    library: str = ""
    key: tuple[str, int] = ("", 0)
    is_torch: bool = False


@functools.cache
def author_of(file: str) -> Author:
    """Return the author of a source file; the built-in cases of this package count as a user's."""
    if file.startswith("<"):
        return Author.OTHER
    if file.startswith(_PACKAGE):
        is_case = file.startswith(_CASES) and not file.endswith("case.py")
        return Author.USER if is_case else Author.OTHER
    if file.startswith(_TORCH):
        return Author.TORCH
    if file.startswith(_INSTALLED):
        return Author.LIBRARY
    return Author.OTHER if file.startswith(_PYTHON) else Author.USER


def calling_place(*, backward: bool = False) -> Place:
    """Return the place of the current call.

    With ``backward`` only frames inside autograd's engine count: those of a ``torch.autograd.Function`` or a hook.
    """
    frames = list(_frames(backward=backward))
    users = [frame for frame in frames if author_of(frame.f_code.co_filename) is Author.USER]
    called = [frame for frame in frames if frame.f_code.co_filename not in _WRAPPERS]
    authors = [author_of(frame.f_code.co_filename) for frame in called]
    makers = [frame for frame, author in zip(called, authors, strict=True) if author in (Author.USER, Author.LIBRARY)]
    maker = makers[0] if makers else None
    is_library = maker is not None and author_of(maker.f_code.co_filename) is Author.LIBRARY
    return Place(
        line=_line(users[0]) if users else "",
        function=_name(users[0].f_code) if users else "",
        outer=_line(users[-1]) if users else "",
        library=_line(maker) if maker is not None and is_library else "",
        key=("", 0) if maker is None else (maker.f_code.co_filename, maker.f_code.co_firstlineno),
        is_torch=next((author for author in authors if author is not Author.OTHER), None) is Author.TORCH,
    )


def definition_of(function: object) -> str:
    """Return ``file.py:12`` of the first line of a function; ``""`` if it is not written in Python."""
    while hasattr(function, "func"):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004  # its code is needed
    return f"{short(code.co_filename)}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def _frames(*, backward: bool) -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe is the same
    while frame is not None:
        file = frame.f_code.co_filename
        if file == RUNNER or (backward and file in _ENGINE):
            return
        yield frame
        frame = frame.f_back


def _line(frame: FrameType) -> str:
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _name(code: CodeType) -> str:
    name = str(getattr(code, "co_qualname", code.co_name))
    return name.rpartition("<locals>.")[2]


@functools.cache
def short(file: str) -> str:
    """Return a path relative to the packages' folder or the working directory, else the name of the file."""
    for folder in (*_INSTALLED, f"{Path.cwd()}/"):
        if file.startswith(folder):
            return file[len(folder) :]
    return Path(file).name
