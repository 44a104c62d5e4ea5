"""Modules of exported programs with dynamic shapes run outside of the region that they are called in."""

from __future__ import annotations

from typing import Any

import torch.export
from overriding import outside_of_regions

_export: Any = torch.export
_real, _module = _export.export, _export.ExportedProgram.module


def _exported(*args: Any, **kwargs: Any) -> Any:
    program = _real(*args, **kwargs)
    program.is_dynamic = bool(kwargs.get("dynamic_shapes"))
    return program


def _outside(program: Any, *args: Any, **kwargs: Any) -> Any:
    module = _module(program, *args, **kwargs)
    if getattr(program, "is_dynamic", False):
        module.forward = outside_of_regions(module.forward)
    return module


_export.export, _export.ExportedProgram.module = _exported, _outside
