"""What a project's own code has raised, in one line."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_amp.quoted import quoted_with_place


def in_one_line(error: Exception) -> str:
    """Its type, its words, and where there is one the line of the project that it comes from."""
    return quoted_with_place(error, (Path(torch.__file__).parent, Path(__file__).parent.parent), 300)
