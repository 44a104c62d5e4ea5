"""The first call of a lazy layer is outside of the region."""

from __future__ import annotations

from typing import Any

import torch
from overriding import outside_of_regions
from torch.nn.modules.lazy import LazyModuleMixin

_module: Any = torch.nn.Module
_lazy: Any = LazyModuleMixin
_call = _module.__call__


def _first(self: Any, *args: Any, **kwargs: Any) -> Any:
    unknown = isinstance(self, _lazy) and self.has_uninitialized_params()
    return (outside_of_regions(_call) if unknown else _call)(self, *args, **kwargs)


_module.__call__ = _first
