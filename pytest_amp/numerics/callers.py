"""Line of a user's program that calls an operator, in its forward pass or in a backward pass written in Python."""

from __future__ import annotations

import inspect
import sysconfig
from pathlib import Path
from types import FrameType

import torch

_TORCH = f"{Path(torch.__file__).parent}/"
_PACKAGE = f"{Path(__file__).parent.parent}/"
_CASES = f"{_PACKAGE}cases/"
_STEP = f"{Path(__file__).parent / 'step.py'}"
_PYTHON = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
#: The modules that enter autograd's engine: their callers do not call the operators of the backward pass.
_ENGINE = (f"{_TORCH}autograd/__init__.py", f"{_TORCH}autograd/graph.py")


def calling_line(*, backward: bool = False) -> str | None:
    """Return ``file.py:12``, the innermost line that is neither torch's, nor Python's, nor this package's.

    In a backward pass it is a line of a ``torch.autograd.Function``, of a hook or of a recomputed part; None if
    autograd itself called the operator.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _STEP or (backward and file in _ENGINE):
            return None
        if _is_users(file):
            return f"{_short(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def line_of(file: str, number: int) -> str:
    """Return ``file.py:12`` for a file's full path."""
    return f"{_short(file)}:{number}"


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    if file.startswith(_PACKAGE):
        return file.startswith(_CASES) and not file.endswith("case.py")
    return not file.startswith(_TORCH) and (file.startswith(_INSTALLED) or not file.startswith(_PYTHON))


def _short(file: str) -> str:
    """Shorten a path for a message: relative to the packages' folder, or to the working directory."""
    for folder in (*_INSTALLED, f"{Path.cwd()}/"):
        if file.startswith(folder):
            return file[len(folder) :]
    return Path(file).name
