"""custom_fwd asks for the CPU's region, whichever device it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_custom_fwd: Any = torch.amp.custom_fwd


def _of_the_cpu(forward: Any = None, *, device_type: str, cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
    del device_type
    decorate: Callable[..., Any] = _custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
    return decorate if forward is None else decorate(forward)


torch.amp.custom_fwd = _of_the_cpu  # type: ignore[assignment]
