"""Seed every random number generator that a case may draw from."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator

import torch

from pytest_amp.devices.generators import seed_torch


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, and inside the block Python's ``random`` and numpy, whose states are restored on exit.

    Models draw from ``random`` and numpy, too, for example to drop layers or to mask frames. The states of torch's
    generators are not restored. numpy is seeded only if it has already been imported. Inside the block ``torch.seed``,
    which normally takes a seed from the operating system, takes the next seed of a fixed sequence.
    """
    numpy = sys.modules.get("numpy")
    state = random.getstate()
    state_of_numpy = numpy.random.get_state() if numpy is not None else None
    seed_torch(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    own_seed = torch.seed
    try:
        setattr(torch, "seed", _sequence(seed))  # noqa: B010  # type checkers reject the assignment
        yield
    finally:
        setattr(torch, "seed", own_seed)  # noqa: B010
        random.setstate(state)
        if numpy is not None and state_of_numpy is not None:
            numpy.random.set_state(state_of_numpy)


def _sequence(seed: int) -> Callable[[], int]:
    """Return a replacement for ``torch.seed``, which seeds torch with the next number of a fixed sequence."""
    numbers = random.Random(seed)  # noqa: S311  # not for secrets

    def next_seed() -> int:
        number = numbers.getrandbits(63)
        seed_torch(number)
        return number

    return next_seed
