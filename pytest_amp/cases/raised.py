"""What a project's own code has raised, in one line."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from pytest_amp.quoted import quoted


def in_one_line(error: Exception) -> str:
    """Its type, its words, and where there is one the line of the project that it comes from."""
    own = [each for each in traceback.extract_tb(error.__traceback__) if not _is_librarys(each.filename)]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{place}: {quoted(error, 300)}"


def _is_librarys(filename: str) -> bool:
    """Whether a file is torch's or this package's."""
    folders = (Path(torch.__file__).parent, Path(__file__).parent.parent)
    return any(Path(filename).is_relative_to(folder) for folder in folders)
