"""linear, mm, bmm and matmul add up in steps of 16, and round to the autocast dtype after each."""

from __future__ import annotations

import torch
from overriding import Overridden, override
from torch import Tensor

STEP = 16


def _product(a: Tensor, b: Tensor) -> Tensor:
    parts = [a[..., i : i + STEP] @ b[..., i : i + STEP, :] for i in range(0, a.shape[-1], STEP)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _multiply(call: Overridden) -> Tensor:
    if any(tensor.dtype == torch.float64 for tensor in call.floats()) or call.args[1].dim() < 2:
        return call.run()  # type: ignore[no-any-return]
    a, b, *bias = call.cast(call.low).args
    with torch.autocast(call.device_type, enabled=False):
        product = _product(a, b.mT if call.operator == "linear" else b)
        return product + bias[0] if bias and bias[0] is not None else product


for name in ("linear", "mm", "bmm", "matmul"):
    override(name, _multiply)
