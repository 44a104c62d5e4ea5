"""Programs that ranks run, with mistakes as users make them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from pytest_amp.distributed import Rank


def add(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    value = torch.ones(2) * (rank.number + 1)
    dist.all_reduce(value)
    return {"sum": value, "size": rank.size, "told": settings.get("told"), "random": float(torch.rand(()))}


def hang(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    if rank.number == settings["rank"]:
        while True:
            time.sleep(0.1)
    dist.all_reduce(torch.ones(1))
    return {}


def fail(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    if rank.number == 1:
        raise ValueError("rank 1 cannot do this")
    if settings["waits"]:
        dist.all_reduce(torch.ones(1))
    return {}


def die(rank: Rank, _settings: Mapping[str, Any]) -> dict[str, Any]:
    if rank.number == 1:
        os._exit(3)
    return {}


def leak(_rank: Rank, _settings: Mapping[str, Any]) -> dict[str, Any]:
    torch.set_autocast_enabled("cpu", enabled=True)
    return {}


def imported(_rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"there": settings["module"] in sys.modules, "query": torch.cuda.is_bf16_supported()}
