"""Seeds of all generators that a case may draw from."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

from pytest_amp.devices.generators import seed_torch


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, and for the block Python's ``random`` and numpy, whose states are restored after it.

    Models also draw from the latter two, for example to drop layers or to mask frames. torch's own generators stay as
    the block leaves them. numpy is seeded if it has been imported.
    """
    numpy = sys.modules.get("numpy")
    state = random.getstate()
    state_of_numpy = numpy.random.get_state() if numpy is not None else None
    seed_torch(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(state)
        if numpy is not None and state_of_numpy is not None:
            numpy.random.set_state(state_of_numpy)
