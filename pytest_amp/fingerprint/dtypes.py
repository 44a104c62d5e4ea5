"""Text of dtypes in a fingerprint: a call's outputs, the four calls of a sample, all samples of an entry.

A sample is called four times: with autocast off and on, each with float32 and with low-precision inputs. The text is
``fp32 low | low low``: off with float32, off with low, on with float32, on with low. ``| =`` means that on equals off.
``low`` is the autocast dtype.
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

#: In place of dtypes: the call raised; autocast refused it as unsafe; it is not possible on this machine.
ERROR, BANNED, UNSEEN = "error", "banned", unseen.UNSEEN
#: Value in place of dtypes if the result contains no tensor.
NO_TENSOR = "none"
#: In place of the four calls: one of them crashed the process or the device, or did not end.
LOST = "lost"
#: Prefix of the reason in place of a missing fingerprint.
NOT = unseen.NOT


def written(result: object, low: torch.dtype | None) -> str:
    """Return the dtypes of all tensors in ``result``, ``fp32,int64``; a single one if all are equal."""
    names = [_name(leaf.dtype) for leaf in trees.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    text = names[0] if len(set(names)) == 1 else ",".join(names) or NO_TENSOR
    return text if low is None else in_terms_of(low, text)


def in_terms_of(low: torch.dtype, text: str) -> str:
    """Replace the name of the dtype ``low`` by ``low``."""
    return ",".join("low" if name == _name(low) else name for name in text.split(","))


def _name(dtype: torch.dtype) -> str:
    return "fp32" if dtype == torch.float32 else dtype_name(dtype)


@dataclass(frozen=True)
class Calls:
    """Output dtypes of the four calls of one sample."""

    off_full: str
    off_low: str
    on_full: str
    on_low: str

    def __str__(self) -> str:
        """Return the text in a fingerprint."""
        off, on = f"{self.off_full} {self.off_low}", f"{self.on_full} {self.on_low}"
        return f"{off} | {'=' if on == off else on}"


def joined(patterns: Iterable[str]) -> str:
    """Join the distinct patterns of an entry's samples into a fingerprint, sorted.

    If there are several, each has its number of samples: a sample that moves from one pattern to another is a change.
    """
    counts = Counter(patterns)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{pattern} x{count}" for pattern, count in sorted(counts.items()))


def matches(one: str, other: str) -> bool:
    """Return whether two fingerprints agree on the same samples; an unobserved call agrees with any dtype."""
    same = (Relation.SAME, Relation.OBSERVED, Relation.UNOBSERVED)
    return one.startswith(NOT) == other.startswith(NOT) and relation(one, other) in same
