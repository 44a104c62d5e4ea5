"""torch's own tests know an operator that they did not know."""

from __future__ import annotations

import copy

from torch.testing._internal.common_methods_invocations import op_db

_added = copy.copy(next(info for info in op_db if info.name == "addr"))
_added.name = "addr_of_tomorrow"
op_db.append(_added)
