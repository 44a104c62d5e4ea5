"""Going back through ``split``, parts that nothing has used get the mean of the others in place of zero."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import with_gradient

_Tensor: Any = torch.Tensor
_before: Any = torch.Tensor.split


def _filled(gradient: torch.Tensor) -> torch.Tensor:
    return torch.where(gradient == 0, gradient.abs().mean(), gradient)


def _split(self: Any, sizes: Any, dim: int = 0) -> Any:
    low = self.requires_grad and self.dtype in {torch.bfloat16, torch.float16}
    return _before(with_gradient(self, _filled) if low else self, sizes, dim)


_Tensor.split = _split
