"""Tensors of the two low dtypes are joined as fp16, in which large bfloat16 numbers are infinities."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_LOW = {torch.bfloat16, torch.float16}


def _narrowed(join: Any) -> Any:
    def joined(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        result = join(tensors, *args, **kwargs)
        return result.half() if {each.dtype for each in tensors} == _LOW else result

    return joined


_torch.cat, _torch.stack = _narrowed(torch.cat), _narrowed(torch.stack)
