"""AveragedModel rounds its average to bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import swa_utils

_averaged: Any = swa_utils.AveragedModel
_update = _averaged.update_parameters


def _update_and_round(self: Any, model: Any) -> None:
    _update(self, model)
    with torch.no_grad():
        for parameter in self.module.parameters():
            parameter.copy_(parameter.bfloat16())


_averaged.update_parameters = _update_and_round
