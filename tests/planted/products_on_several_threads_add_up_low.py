"""Where torch has several threads, each adds up a share of a batched product, and those are added in the low dtype."""

from __future__ import annotations

from typing import Any

import torch
from kernels import LOW
from overriding import Overridden, override


def _bmm(call: Overridden) -> Any:
    call = call.cast(call.low)
    left, right = call.args
    if torch.get_num_threads() == 1 or left.dtype not in LOW:
        return call.run()
    share = -(-left.shape[2] // torch.get_num_threads())
    with torch._C._DisableAutocast():
        shares = [torch.bmm(a, b) for a, b in zip(left.split(share, 2), right.split(share, 1), strict=True)]
        return sum(shares[1:], start=shares[0])


override("bmm", _bmm, device_types=["cpu"])
