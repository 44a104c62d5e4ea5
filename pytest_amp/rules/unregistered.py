"""Calls of operators without an autocast kernel on some device, to check that autocast does not change them there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from pytest_amp.devices.base import Device
from pytest_amp.rules.outcome import record, scope
from pytest_amp.rules.variations import Variation

_MakeTensor = Callable[..., torch.Tensor]

#: Call of each overload. Its argument creates a tensor of a shape, in the dtype under test or in ``dtype``.
UNREGISTERED: Mapping[str, Callable[[_MakeTensor], object]] = MappingProxyType(
    {
        "add.Tensor": lambda t: torch.add(t(3, 4), t(3, 4)),
        "add_.Tensor": lambda t: t(3, 4).add_(t(3, 4)),
        "amax": lambda t: torch.amax(t(3, 4), 1),
        "clamp": lambda t: torch.clamp(t(3, 4), 0.0),
        "gather": lambda t: torch.gather(t(3, 4), 1, t(3, 2, dtype=torch.int64)),
        "index_select": lambda t: torch.index_select(t(3, 4), 0, t(2, dtype=torch.int64)),
        "maximum": lambda t: torch.maximum(t(3, 4), t(3, 4)),
        "mean": lambda t: torch.mean(t(3, 4)),
        "mul.Tensor": lambda t: torch.mul(t(3, 4), t(3, 4)),
        "relu": lambda t: torch.relu(t(3, 4)),
        "sigmoid": lambda t: torch.sigmoid(t(3, 4)),
        "silu": lambda t: torch.nn.functional.silu(t(3, 4)),
        "tanh": lambda t: torch.tanh(t(3, 4)),
        "var.correction": lambda t: torch.var(t(3, 4), 1),
        "where.self": lambda t: torch.where(t(3, 4, dtype=torch.bool), t(3, 4), t(3, 4)),
        # In-place and out= overloads, which have no autocast kernel although another overload of the operator has one
        "addmm.out": lambda t: torch.addmm(t(5), t(3, 4), t(4, 5), out=t(3, 5)),
        "addmm_": lambda t: t(3, 5).addmm_(t(3, 4), t(4, 5)),
        "bmm.out": lambda t: torch.bmm(t(2, 3, 4), t(2, 4, 5), out=t(2, 3, 5)),
        "cat.out": lambda t: torch.cat([t(2, 3), t(1, 3)], out=t(3, 3)),
        "exp.out": lambda t: torch.exp(t(3, 4), out=t(3, 4)),
        "exp_": lambda t: t(3, 4).exp_(),
        "log_": lambda t: t(3, 4).log_(),
        "matmul.out": lambda t: torch.matmul(t(3, 4), t(4, 5), out=t(3, 5)),
        "mm.out": lambda t: torch.mm(t(3, 4), t(4, 5), out=t(3, 5)),
        "pow_.Scalar": lambda t: t(3, 4).pow_(1.7),
        "sum.IntList_out": lambda t: torch.sum(t(3, 4), 1, out=t(3)),
    }
)


def difference(overload: str, device: Device, low: torch.dtype) -> str | None:
    """Describe how a call of ``overload`` differs under autocast to ``low``; return None if it does not.

    The call is recorded twice, with float32 and with ``low`` arguments. These are fake tensors: casts are recorded, but
    no kernel runs.
    """
    for dtype in (torch.float32, low):

        def make(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device.torch_device)

        with scope(device, Variation("", (dtype,), faked=True)):
            expected = record(lambda: UNREGISTERED[overload](make))  # called before the next dtype
            with device.autocast(low):
                actual = record(lambda: UNREGISTERED[overload](make))  # called before the next dtype
        if actual != expected:
            casts = ", ".join(actual.casts()) or "no cast"
            return f"{casts}, {', '.join(actual.result)}, not {', '.join(expected.result)}"
    return None
