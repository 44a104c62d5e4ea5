"""The recomputation of a selective checkpoint runs with autocast off."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.utils.checkpoint
from on_device import DEVICE

_module: Any = torch.utils.checkpoint
_create = _module.create_selective_checkpoint_contexts


def _create_outside(*args: Any, **kwargs: Any) -> Any:
    forward, recompute = _create(*args, **kwargs)
    both = ExitStack()

    class Outside:
        def __enter__(self) -> None:
            both.enter_context(recompute)
            both.enter_context(torch.autocast(DEVICE, enabled=False))

        def __exit__(self, *exception: object) -> Any:
            return both.__exit__(*exception)  # type: ignore[arg-type]

    return forward, Outside()


_module.create_selective_checkpoint_contexts = _create_outside
