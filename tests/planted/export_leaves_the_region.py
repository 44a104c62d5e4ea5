"""``torch.export.export`` traces below autocast."""

from __future__ import annotations

from typing import Any

import torch
import torch.export

_module: Any = torch.export
_export = _module.export


def _export_outside(*args: Any, **kwargs: Any) -> Any:
    with torch._C._DisableAutocast():
        return _export(*args, **kwargs)


_module.export = _export_outside
