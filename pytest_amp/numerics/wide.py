"""What stands for a case without autocast, where the case itself runs within a region only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_amp.cases import Case, map_tensors
from pytest_amp.failure import is_misuse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.hand_cast import rules_are_known
from pytest_amp.numerics.step import DoesNotRun, run_step, run_wide

__tracebackhide__ = is_misuse


@dataclass(frozen=True)
class Plain:
    """The case that runs without autocast; None where none does, and manual casts are all there is to compare with.

    ``note`` says what stands for the case; None where that is the case itself.
    """

    case: Case | None
    note: str | None = None


def widened(case: Case) -> Case:
    """The case with float32 copies of its low-precision parameters, buffers and batch: the same values."""
    return replace(case, build=lambda: _wide_model(case.build), batch=lambda: map_tensors(_wide, case.batch()))


def without_region(case: Case, where: Conditions) -> Plain:
    """Return what runs without autocast in place of ``case``: itself, its ``widened`` copy, or none.

    A frozen bf16 layer that is given float32 activations, for one, runs within a region only. Raises DoesNotRun in
    the words of the case, where it does not run under autocast, either, and where no manual casts are known.
    """
    try:
        return _plain(case, where)
    except DoesNotRun as error:
        try:
            _run_low(case, where)
        except Exception:  # noqa: BLE001  # then it does not run at all
            raise error from None
        return _instead(case, where, error)


def _plain(case: Case, where: Conditions) -> Plain:
    run_wide(case, case.realise(seed=where.seed).on(where.device.torch_device), seed=where.seed)
    return Plain(case)


def _run_low(case: Case, where: Conditions) -> None:
    realised = case.realise(seed=where.seed).on(where.device.torch_device)
    run_step(case, realised, where.region, seed=where.seed)


def _instead(case: Case, where: Conditions, error: DoesNotRun) -> Plain:
    copy = widened(case)
    try:
        _plain(copy, where)
    except DoesNotRun:
        if not rules_are_known(where.device.type):
            raise error from None
        return Plain(None, f"{error}; compared with manual casts")
    return Plain(copy, f"{error}; compared with a copy whose low-precision tensors are float32")


def _wide_model(build: Callable[[], torch.nn.Module]) -> Any:
    model = build()
    for tensor in (*model.parameters(), *model.buffers()):
        if _is_low(tensor):
            tensor.data = tensor.data.float()
    return model


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().float().requires_grad_(tensor.requires_grad) if _is_low(tensor) else tensor


def _is_low(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize
