"""mm and bmm of a tensor subclass are not cast."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from overriding import Overridden, override


def _multiply(call: Overridden) -> Any:
    plain = all(type(each) in {torch.Tensor, torch.nn.Parameter} for each in call.floats())
    return call.cast(call.low).run() if plain else call.run()


override("mm", _multiply, [DEVICE])
override("bmm", _multiply, [DEVICE])
