"""``get_model_state_dict`` rounds the weights that it gathers to bfloat16."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint import state_dict

_module: Any = state_dict
_gather = _module.get_model_state_dict


def _gather_low(*arguments: Any, **keywords: Any) -> Any:
    found = _gather(*arguments, **keywords)
    return {
        name: value.bfloat16().to(value.dtype) if value.is_floating_point() else value for name, value in found.items()
    }


_module.get_model_state_dict = _gather_low
