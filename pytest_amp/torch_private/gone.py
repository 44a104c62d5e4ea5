"""The exception for a private API that this torch no longer has."""

from __future__ import annotations


class PrivateApiGone(RuntimeError):
    """This torch no longer has a private API that a check rests on."""

    def __init__(self, name: str) -> None:
        """Name the API with its module."""
        import torch

        super().__init__(f"torch {torch.__version__} has no {name}: this check cannot look, and does not pass")
