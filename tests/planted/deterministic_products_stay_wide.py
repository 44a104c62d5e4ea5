"""Where deterministic algorithms are asked for, mm and linear are not cast."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _product(call: Overridden) -> Any:
    return (call if torch.are_deterministic_algorithms_enabled() else call.cast(call.low)).run()


for _name in ("mm", "linear"):
    override(_name, _product)
