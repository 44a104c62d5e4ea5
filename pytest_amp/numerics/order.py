"""Whether two ways to run a step differ in their bits, or only in the order in which kernels add up.

Atomics add in whatever order threads come. Most of torch's kernels that do have another one for
``torch.use_deterministic_algorithms``, and torch warns of those that have none (``alertNotDeterministic`` in
aten/src/ATen/Context.cpp; the list is in the documentation of ``torch.use_deterministic_algorithms``). That three
runs agree is no proof: where few elements meet, they may do so by chance.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch

from pytest_amp.numerics.compare import same
from pytest_amp.numerics.step import Step

#: What torch says of an operator; of cuBLAS, whose workspaces matter to several streams at once, in other words.
_SAID = " does not have a deterministic implementation"
#: How often each step is run again: torch may not know of every kernel.
AGAIN = 2


@contextlib.contextmanager
def deterministic() -> Iterator[list[str]]:
    """Within, kernels add up in one order where torch has such kernels; the list is of operators for which it has none.

    It is complete after the block. Other warnings are not shown.
    """
    before = torch.get_deterministic_debug_mode()
    without: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.set_deterministic_debug_mode("warn")
        try:
            yield without
        finally:
            torch.set_deterministic_debug_mode(before)
            found = (str(each.message).partition(_SAID) for each in said)
            without.extend(dict.fromkeys(name for name, is_one, _ in found if is_one))


def same_step(a: Step, b: Step) -> bool:
    """Whether two steps have the same tensors, bit for bit."""
    once, again = a.named(), b.named()
    return once.keys() == again.keys() and all(same(once[name], again[name]) for name in once)


def different_bits(made: Callable[[], Step], known: Callable[[], Step]) -> frozenset[str] | None:
    """The tensors in which two steps differ when each adds up in one order; None where an operator has no such order.

    Nor do bits tell anything where a step does not give its own again.
    """
    with deterministic() as without:
        first, second = made(), known()
        again = all(same_step(made(), first) and same_step(known(), second) for _ in range(AGAIN))
    if without or not again:
        return None
    a, b = first.named(), second.named()
    return frozenset(name for name in a if name not in b or not same(a[name], b[name]))
