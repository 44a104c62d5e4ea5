"""Loading the state of a GPU's generator does nothing."""

from __future__ import annotations

from typing import Any

import torch

_cuda: Any = torch.cuda
_cuda.set_rng_state = lambda *_args, **_kwargs: None
