"""Functions that run on each rank: norms and clipping of sharded gradients, and full state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank

from .models import backward, gradients
from .programs import low_dtype, model_and_rows, on_cpu
from .ranks_fsdp import gathered, sharded, wrapped


def clip(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step under autocast with FSDP2 or FSDP1; return the norm, and gradients before and after clipping."""
    model, rows = model_and_rows(rank, settings)
    one_unit = settings["one_unit"]
    parallel: Any = (wrapped if one_unit else sharded)(model, rank, {})
    backward(parallel, rows, lambda: rank.autocast(low_dtype(settings)))

    def whole() -> dict[str, torch.Tensor]:
        return gathered(parallel) if one_unit else on_cpu(gradients(parallel))

    before = whole()
    most, kind = settings["most"], float(settings["norm_type"])
    if one_unit:
        norm = parallel.clip_grad_norm_(most, kind)
    else:
        norm = nn.utils.clip_grad_norm_(parallel.parameters(), most, kind).full_tensor()  # type: ignore[attr-defined]
    return {"before": before, "norm": float(norm), "dtype": str(norm.dtype), "after": whole()}


def states(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full state dict of a sharded model, and the state dict from before it was sharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model, _ = model_and_rows(rank, settings)
    whole = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    parallel: Any = (wrapped if settings["one_unit"] else sharded)(model, rank, {})
    with rank.autocast(low_dtype(settings), enabled=settings["region"]):
        gathered_state = get_model_state_dict(parallel, options=StateDictOptions(full_state_dict=True))
    return {"made": whole, "found": on_cpu(gathered_state)}
