"""Find the line of user code that calls an operator, and classify source files by author."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

import torch

TORCH = f"{Path(torch.__file__).parent}/"
PACKAGE = f"{Path(__file__).parent.parent}/"
_CASES = f"{PACKAGE}cases/"
_STEP = f"{Path(__file__).parent / 'step.py'}"
_PYTHON = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = tuple({f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")})
#: Modules that enter the autograd engine. Their callers start a backward pass, but do not call its operators.
ENGINE = (f"{TORCH}autograd/__init__.py", f"{TORCH}autograd/graph.py")


class Author(enum.Enum):
    """Author of a source file: the user, an installed library, torch, or anything else."""

    USER = "user"
    LIBRARY = "library"
    TORCH = "torch"
    OTHER = "other"


@functools.cache
def author_of(file: str) -> Author:
    """Return the author of a source file; the built-in cases of this package count as user code."""
    if file.startswith("<"):
        return Author.OTHER
    if file.startswith(PACKAGE):
        is_case = file.startswith(_CASES) and not file.endswith("case.py")
        return Author.USER if is_case else Author.OTHER
    if file.startswith(TORCH):
        return Author.TORCH
    if file.startswith(_INSTALLED):
        return Author.LIBRARY
    if file.startswith(_PYTHON):
        return Author.OTHER
    _, package = _generated(file)
    return author_of(package) if package else Author.USER


@functools.cache
def _generated(file: str) -> tuple[str, str]:
    """Return the name of the module that an installed package wrote into a file elsewhere, and the package's file.

    Both are "" for other files. PyTorch Geometric writes modules into temporary files, with names by chance.
    """
    for name, module in list(sys.modules.items()):
        if _file_of(module) == file:
            package = _file_of(sys.modules.get(name.partition(".")[0]))
            return (name, package) if "." in name and package.startswith(_INSTALLED) else ("", "")
    return "", ""


def _file_of(module: object) -> str:
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def calling_line(*, backward: bool = False) -> str | None:
    """Return the innermost line outside torch, the standard library and this package, as ``file.py:12``.

    In a backward pass this is a line of a ``torch.autograd.Function``, a hook or a recomputed segment. Return None if
    autograd itself called the operator.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _STEP or (backward and file in ENGINE):
            return None
        if author_of(file) in (Author.USER, Author.LIBRARY):
            return f"{short(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def definition_of(function: object) -> str:
    """Return the first line of a function as ``file.py:12``, or ``""`` if it is not written in Python."""
    while hasattr(function, "func"):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004  # its code is needed
    return f"{short(code.co_filename)}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def short(file: str) -> str:
    """Shorten a path for a message: relative to the packages' folder, or to the working directory."""
    return _relative(file, os.getcwd())  # noqa: PTH109  # called for every operator; ten times as fast as Path.cwd


@functools.cache
def _relative(file: str, working_directory: str) -> str:
    for folder in (*_INSTALLED, f"{working_directory}/"):
        if file.startswith(folder):
            return file[len(folder) :]
    return _generated(file)[0] or Path(file).name
