"""Stand-in for a torch whose own tests cannot be imported."""

from __future__ import annotations

import sys

sys.modules["torch.testing._internal.common_methods_invocations"] = None  # type: ignore[assignment]  # ImportError
