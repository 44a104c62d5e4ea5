"""Functions that run on each rank: DDP's communication hooks over several iterations, with known gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.torch_private import recorded_collectives

from .hooks import dtypes_of_state, registered
from .models import Tensors, gradients
from .programs import low_dtype, on_cpu, sent
from .ranks_ddp import wrapped

WIDTH, OUTPUTS, ITERATIONS = 32, 16, 4


def known(number: int) -> Tensors:
    """Return a row of powers of two, shared by all ranks, and the rank's factors: their products are low-precision.

    A gradient is therefore a matrix of rank one, without rounding; the sum over ranks has rank one, too, but no low
    dtype represents it.
    """
    row = 2.0 ** (torch.arange(WIDTH) % 7 - 3)
    steps = torch.tensor([(5 + column, 77 - 3 * column)[number] for column in range(OUTPUTS)])
    factors = (1 + steps / 128) * (-1.0) ** torch.arange(OUTPUTS)
    return {"row": row, "factors": factors * (1.0, 2.0**-6)[number]}


def iterate(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce the same gradient in each iteration: results, calls, and the hook's state, its whole error included."""
    torch.manual_seed(settings["seed"])
    model = nn.Linear(WIDTH, OUTPUTS, bias=False).to(rank.device)
    parallel = wrapped(model, rank, {})
    state, hook = registered(settings["hook"])
    parallel.register_comm_hook(state, hook)
    mine = {name: value.to(rank.device) for name, value in known(rank.number).items()}
    arrived, errors, calls_of = [], [], []
    for _ in range(ITERATIONS):
        parallel.zero_grad()
        with recorded_collectives() as calls:
            with rank.autocast(low_dtype(settings)):
                outputs = parallel(mine["row"].unsqueeze(0))
            torch.autograd.backward((outputs * mine["factors"]).float().sum())
        arrived.append(on_cpu(gradients(parallel))["weight"])
        calls_of.append(sent(calls))
        errors.append({name: value.cpu().clone() for name, value in getattr(state, "error_dict", {}).items()})
    return {"gradients": arrived, "sent": calls_of, "kept": dtypes_of_state(state), "errors": errors}
