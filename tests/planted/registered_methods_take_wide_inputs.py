"""A method that FSDP2 was told of gathers weights, and does not cast what it is given."""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed import fsdp

_fsdp: Any = fsdp
_before = _fsdp.register_fsdp_forward_method


def _register(module: Any, name: str) -> None:
    _before(module, name)
    registered = getattr(module, name)

    @functools.wraps(registered)
    def call(*args: Any, **kwargs: Any) -> Any:
        state = module._get_fsdp_state()
        policy = state._mp_policy
        state._mp_policy = type(policy)(policy.param_dtype, policy.reduce_dtype, cast_forward_inputs=False)
        try:
            return registered(*args, **kwargs)
        finally:
            state._mp_policy = policy

    setattr(module, name, call)


_fsdp.register_fsdp_forward_method = _register
