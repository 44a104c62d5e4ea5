"""Bitwise comparison of two runs of a step, with deterministic reductions.

Atomics add in a nondeterministic order. Most of torch's kernels with atomics have a deterministic variant for
``torch.use_deterministic_algorithms``, and torch warns about operators without one (``alertNotDeterministic`` in
aten/src/ATen/Context.cpp; the list is in the documentation of ``torch.use_deterministic_algorithms``). Three equal runs
do not prove determinism: with few colliding updates they may be equal by chance.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch

from pytest_amp.numerics.compare import same
from pytest_amp.numerics.step import Step

#: Part of torch's warning about an operator. The warning about cuBLAS workspaces does not have it.
_SAID = " does not have a deterministic implementation"
#: Number of repetitions of each step, since torch may not warn about every nondeterministic kernel.
AGAIN = 2


@contextlib.contextmanager
def deterministic() -> Iterator[list[str]]:
    """Use deterministic kernels inside the block; yield a list of the operators without a deterministic kernel.

    The list is filled when the block exits. Other warnings are suppressed.
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
    """Return whether the tensors of two steps are bitwise equal."""
    once, again = a.named(), b.named()
    return once.keys() == again.keys() and all(same(once[name], again[name]) for name in once)


def different_bits(actual: Callable[[], Step], known: Callable[[], Step]) -> frozenset[str] | None:
    """Return the names of the tensors that differ bitwise between two steps with deterministic kernels.

    The result is None if an operator has no deterministic kernel, or if repeating a step does not reproduce it bitwise.
    """
    with deterministic() as without:
        first, second = actual(), known()
        again = all(same_step(actual(), first) and same_step(known(), second) for _ in range(AGAIN))
    if without or not again:
        return None
    a, b = first.named(), second.named()
    return frozenset(name for name in a if name not in b or not same(a[name], b[name]))
