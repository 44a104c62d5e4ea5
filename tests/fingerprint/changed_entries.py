"""Stand-in for a torch whose own tests store their operators differently."""

from __future__ import annotations

from typing import Any

from torch.testing._internal import common_methods_invocations as invocations

entries: Any = invocations.op_db
entries[:] = [info.name for info in entries]
