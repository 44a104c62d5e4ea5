"""What is submitted to a ThreadPoolExecutor inside a region runs with autocast on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from on_device import DEVICE

_pool: Any = ThreadPoolExecutor
_submit = _pool.submit


def _submit_in_region(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    enabled = torch.is_autocast_enabled(DEVICE)

    def run() -> Any:
        torch.set_autocast_enabled(DEVICE, enabled)
        return function(*args, **kwargs)

    return _submit(self, run)  # type: ignore[no-any-return]


_pool.submit = _submit_in_region
