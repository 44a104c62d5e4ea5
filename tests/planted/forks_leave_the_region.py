"""``torch.jit.fork`` runs its function outside the region."""

from __future__ import annotations

from typing import Any

import torch
from overriding import outside_of_regions

_jit: Any = torch.jit
_jit.fork = outside_of_regions(torch.jit.fork)
