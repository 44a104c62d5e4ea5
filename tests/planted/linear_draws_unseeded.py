"""Each linear product is scaled by a number that nobody seeds: no two runs of a step are the same."""

from __future__ import annotations

import random
from typing import Any

import torch

_real: Any = torch.nn.functional.linear
#: What the operating system draws: no seed reaches it.
_numbers = random.SystemRandom()


def _scaled(*args: Any, **kwargs: Any) -> torch.Tensor:
    product: torch.Tensor = _real(*args, **kwargs)
    return product * (1 + _numbers.gauss(0, 1) / 8)


torch.nn.functional.linear = _scaled
