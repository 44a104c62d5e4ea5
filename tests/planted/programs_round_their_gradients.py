"""What goes back through an exported program with dynamic shapes is rounded to bf16 on its way into it."""

from __future__ import annotations

from typing import Any

import torch
import torch.export

_program: Any = torch.export.ExportedProgram
_module = _program.module


def _rounding(program: Any, *args: Any, **kwargs: Any) -> Any:
    module = _module(program, *args, **kwargs)
    forward = module.forward

    def call(*inputs: Any) -> Any:
        outputs = forward(*inputs)
        for each in outputs:
            if program.range_constraints and each.requires_grad:
                each.register_hook(lambda gradient: gradient.to(torch.bfloat16).to(gradient.dtype))
        return outputs

    module.forward = call
    return module


_program.module = _rounding
