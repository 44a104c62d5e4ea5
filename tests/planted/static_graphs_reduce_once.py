"""DDP with a static graph reduces gradients in its first step, and in none after it."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

_parallel: Any = DistributedDataParallel
_before = _parallel.forward
_called: dict[int, int] = {}


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    _called[id(self)] = _called.get(id(self), 0) + 1
    if self.static_graph and _called[id(self)] > 1:
        self.require_backward_grad_sync = False
    return _before(self, *args, **kwargs)


_parallel.forward = _forward
