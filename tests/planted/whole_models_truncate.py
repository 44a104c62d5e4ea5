"""``Module.bfloat16`` cuts the lower half of each parameter off."""

from __future__ import annotations

from typing import Any

import torch

_module: Any = torch.nn.Module
_bfloat16 = _module.bfloat16


def _truncated(self: Any) -> Any:
    for parameter in self.parameters():
        halves = parameter.data.view(torch.int32) & -65536
        parameter.data = halves.view(torch.float32)
    return _bfloat16(self)


_module.bfloat16 = _truncated
