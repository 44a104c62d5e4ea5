"""``AveragedModel`` keeps the buffers of the first model that it was made of."""

from __future__ import annotations

from typing import Any

from torch.optim.swa_utils import AveragedModel

_averaged: Any = AveragedModel
_update = _averaged.update_parameters


def _without_buffers(self: Any, model: Any) -> None:
    before = [buffer.clone() for buffer in self.module.buffers()]
    _update(self, model)
    for buffer, kept in zip(self.module.buffers(), before, strict=True):
        buffer.copy_(kept)


_averaged.update_parameters = _without_buffers
