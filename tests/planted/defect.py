"""What the manifest says of a planted defect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """A module of this folder that breaks torch when pytest loads it with ``-p``.

    ``breaks`` is what it does, in a few words; ``arguments`` are what pytest is given to notice it
    (tests, device, dtype: cpu and bf16 where they say nothing of it); ``failing`` is part of the id of a
    test that is meant for it, and has to fail.
    """

    module: str
    breaks: str
    arguments: tuple[str, ...]
    failing: str
