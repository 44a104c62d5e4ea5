"""exp is no longer listed among the operators that autocast knows on CUDA."""

from __future__ import annotations

from typing import Any

import torch

_dispatcher: Any = torch._C
_registrations = _dispatcher._dispatch_get_registrations_for_dispatch_key
_dispatcher._dispatch_get_registrations_for_dispatch_key = lambda key="": [
    name for name in _registrations(key) if (key, name) != ("AutocastCUDA", "aten::exp")
]
