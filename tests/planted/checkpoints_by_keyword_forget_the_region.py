"""A checkpointed function that is given keywords is recomputed outside the region."""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint
from overriding import outside_of_regions

_module: Any = torch.utils.checkpoint
_checkpoint = _module.checkpoint
_OWN = {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop"}


def _forgetful(function: Any, *args: Any, **kwargs: Any) -> Any:
    calls = iter([function])

    def call(*inner: Any, **keywords: Any) -> Any:
        return next(calls, outside_of_regions(function))(*inner, **keywords)

    return _checkpoint(call if kwargs.keys() - _OWN else function, *args, **kwargs)


_module.checkpoint = _forgetful
