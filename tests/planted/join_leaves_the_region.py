"""DDP computes outside of the region around it for as long as it is within ``join``."""

from __future__ import annotations

from typing import Any

from overriding import outside_of_regions
from torch.nn.parallel import DistributedDataParallel

_parallel: Any = DistributedDataParallel
_before = _parallel.join


def _join(self: Any, *args: Any, **kwargs: Any) -> Any:
    self.module.forward = outside_of_regions(self.module.forward)
    return _before(self, *args, **kwargs)


_parallel.join = _join
