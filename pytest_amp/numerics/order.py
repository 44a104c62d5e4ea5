"""Bitwise comparison of two runs of a step, with deterministic reductions.

Atomics add in a nondeterministic order. Most of torch's kernels with atomics have a deterministic variant for
``torch.use_deterministic_algorithms``, and torch warns of operators without one (``alertNotDeterministic`` in
aten/src/ATen/Context.cpp; the list is in the documentation of ``torch.use_deterministic_algorithms``). Three equal runs
are no proof: with few colliding updates they may be equal by chance.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch

from pytest_amp.numerics.compare import same
from pytest_amp.numerics.step import Step

#: Part of torch's warning for an operator. The one for cuBLAS, whose workspaces matter to several streams, differs.
_SAID = " does not have a deterministic implementation"
#: The number of repetitions of each step, since torch may not warn of every kernel.
AGAIN = 2


@contextlib.contextmanager
def deterministic() -> Iterator[list[str]]:
    """Use deterministic kernels inside the block; yield a list of the operators without a deterministic kernel.

    The list is complete after the block. Other warnings are not shown.
    """
    before = torch.get_deterministic_debug_mode()
    without: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_deterministic_debug_mode("warn")
        try:
            yield without
        finally:
            torch.set_deterministic_debug_mode(before)
            parts = (str(warning.message).partition(_SAID) for warning in caught)
            without.extend(dict.fromkeys(name for name, is_one, _ in parts if is_one))


def same_step(a: Step, b: Step) -> bool:
    """Return whether two steps have the same tensors, bitwise."""
    once, again = a.named(), b.named()
    return once.keys() == again.keys() and all(same(once[name], again[name]) for name in once)


def different_bits(actual: Callable[[], Step], known: Callable[[], Step]) -> frozenset[str] | None:
    """Return the tensors that differ between two steps with deterministic reductions; None if an operator has none.

    The result is None, too, if a step does not reproduce its own bits.
    """
    with deterministic() as without:
        first, second = actual(), known()
        again = all(same_step(actual(), first) and same_step(known(), second) for _ in range(AGAIN))
    if without or not again:
        return None
    a, b = first.named(), second.named()
    return frozenset(name for name in a if name not in b or not same(a[name], b[name]))
