"""Where tensors that were saved may be changed, autocast is off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_graph: Any = torch.autograd.graph
_allow = _graph.allow_mutation_on_saved_tensors


@contextlib.contextmanager
def _allowed() -> Iterator[Any]:
    with _allow() as allowed, torch._C._DisableAutocast():
        yield allowed


_graph.allow_mutation_on_saved_tensors = _allowed
