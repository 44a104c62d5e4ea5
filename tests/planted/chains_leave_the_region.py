"""``torch.chain_matmul`` is computed outside of the region."""

from __future__ import annotations

from typing import Any

import torch
from overriding import outside_of_regions

_torch: Any = torch
_torch.chain_matmul = outside_of_regions(_torch.chain_matmul)
