"""torch.set_rng_state does nothing: a resumed training drops out other units and draws other batches."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch


def _set_nothing(new_state: Any) -> None:
    return


_torch.set_rng_state = _set_nothing
