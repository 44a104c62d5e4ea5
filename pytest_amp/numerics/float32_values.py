"""Check that a tensor is float32, and that its values were never rounded to the low dtype."""

from __future__ import annotations

import warnings

import torch

from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import ENOUGH, all_in, finite_values, is_hollow, stored_values
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.precision import dtype_name

__tracebackhide__ = is_usage_error


class OneValue(UserWarning):
    """Warning about a tensor with a single element, of which only the dtype can be checked."""


def check_fp32(tensor: torch.Tensor, conditions: Conditions, *, name: str) -> None:
    """Check that ``tensor`` is float32 and was never rounded to the low dtype. See ``Amp.check_fp32``."""
    low = conditions.precision.dtype
    if tensor.dtype != torch.float32:
        raise _failure(f"{name} is {dtype_name(tensor.dtype)}, it should be float32", conditions, tensor)
    values = finite_values(tensor)
    distinct = int(torch.unique(values).numel())
    if is_hollow(tensor, low):
        raise _failure(f"{name} is float32, but {dtype_name(low)} represents all its values", conditions, tensor)
    if distinct >= ENOUGH or not all_in(values, low):
        return
    lost = int((~stored_values(tensor.detach()).isfinite()).sum())
    if lost:
        raise AmpFailure(
            f"{name}: {lost} of {tensor.numel()} values are not finite",
            label_before="expected",
            before="float32, with values that the low dtype cannot represent",
            now=conditions.now(
                f"{distinct} distinct finite values other than zero, each of which {dtype_name(low)} has"
            ),
            likely=f"they were beyond {torch.finfo(low).max:.5g}, where {dtype_name(low)} ends: float32 before that",
        )
    if values.numel() >= ENOUGH:
        raise AmpFailure(
            f"{name} has {values.numel()} values other than zero, of which {distinct} are distinct, and "
            f"{dtype_name(low)} has each of them",
            label_before="expected",
            before="float32, with values that the low dtype cannot represent",
            now=conditions.now(f"{', '.join(f'{value:g}' for value in torch.unique(values)[:4].tolist())}, ..."),
            likely="it collapsed: values that differ became one in the low dtype. What is meant to have so few, a mask "
            "or counts, is checked by its dtype alone",
        )
    if tensor.numel() != 1:
        raise AmpUsageError(
            f"{name} has fewer than {ENOUGH} distinct finite values other than zero, and {dtype_name(low)} has each: "
            "too few to tell; expected more"
        )
    warnings.warn(
        OneValue(
            f"{name} has one value, which {dtype_name(low)} has, too: its dtype alone was checked. Of a loss, "
            'reduction="none" gives the values that it is made of'
        ),
        stacklevel=3,
    )


def _failure(what: str, conditions: Conditions, tensor: torch.Tensor) -> AmpFailure:
    kind = dtype_name(tensor.dtype)
    likely = f"what it was made of is {kind}: autocast makes none"
    if tensor.dtype == torch.float32:
        likely = "it was computed in the low dtype or rounded to it, and cast back to float32"
    elif tensor.dtype in LOW:
        likely = f"it was computed in {kind}, or cast to it: .float() before it keeps float32"
    return AmpFailure(
        what,
        label_before="expected",
        before="float32, with values that the low dtype cannot represent",
        now=conditions.now(kind),
        likely=likely,
    )
