"""Averages of models over ranks are rounded to the autocast dtype where they are made in a region."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.model_averaging import averagers

_averager: Any = averagers.PeriodicModelAverager
_before = _averager.average_parameters


def _rounded(self: Any, params: Any) -> None:
    given = list(params)
    _before(self, given)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            for each in given:
                each.data.copy_(each.data.to(torch.get_autocast_dtype(kind)))


_averager.average_parameters = _rounded
