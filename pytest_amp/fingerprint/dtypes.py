"""How dtypes are written in a fingerprint: a call's outputs, the four calls of a sample, all samples of an entry.

A sample is called four times: with autocast off and on, and each with float32 and with low inputs. Written
as ``fp32 low | low low``: off with float32, off with low, on with float32, on with low. ``| =`` says that
on is as off. ``low`` is the autocast dtype.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pytest_amp.precision import dtype_name
from pytest_amp.record import unseen
from pytest_amp.record.unseen import Relation, relation
from pytest_amp.torch_private import trees

#: In place of dtypes: the call raised; autocast refused it as unsafe; it could not be made on this machine.
ERROR, BANNED, UNSEEN = "error", "banned", unseen.UNSEEN
#: In place of dtypes: there is no tensor in the result.
NO_TENSOR = "none"
#: In place of the four calls: one of them brought the process or the device down, or never ended.
LOST = "lost"
#: What a fingerprint begins with where there is none.
NOT = unseen.NOT


def written(result: object, low: torch.dtype | None) -> str:
    """The dtypes of all tensors in ``result``: ``fp32,int64``; just once where they are all the same."""
    names = [_name(leaf.dtype) for leaf in trees.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    text = names[0] if len(set(names)) == 1 else ",".join(names) or NO_TENSOR
    return text if low is None else in_terms_of(low, text)


def in_terms_of(low: torch.dtype, text: str) -> str:
    """``low`` in place of that dtype's own name."""
    return ",".join("low" if name == _name(low) else name for name in text.split(","))


def _name(dtype: torch.dtype) -> str:
    return "fp32" if dtype == torch.float32 else dtype_name(dtype)


@dataclass(frozen=True)
class Calls:
    """What the four calls of one sample gave."""

    off_full: str
    off_low: str
    on_full: str
    on_low: str

    def __str__(self) -> str:
        """As it is written in a fingerprint."""
        off, on = f"{self.off_full} {self.off_low}", f"{self.on_full} {self.on_low}"
        return f"{off} | {'=' if on == off else on}"


def joined(patterns: Iterable[str]) -> str:
    """A fingerprint: the different patterns of an entry's samples, sorted.

    Of several patterns each has its number of samples: one that moves from one of them to another is a change.
    """
    counts = Counter(patterns)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{pattern} x{count}" for pattern, count in sorted(counts.items()))


def matches(one: str, other: str) -> bool:
    """Whether two fingerprints say the same of the same samples; what could not be seen is like anything."""
    same = (Relation.SAME, Relation.OBSERVED, Relation.UNOBSERVED)
    return one.startswith(NOT) == other.startswith(NOT) and relation(one, other) in same
