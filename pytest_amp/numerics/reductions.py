"""Measure an operator's error in units of one rounding, to show that it accumulates in float32 and rounds once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.data_files import toml
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import relative_error
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.record import Observe

#: Float32 sums in another order flip the rounding of a few results. Measured:
#: 0.5 % of the elements, and 0.001 of one rounding.
MARGIN = 1.1


@dataclass(frozen=True)
class Roundings:
    """Errors in units of one rounding of the exact value: of the result, and of each argument's gradient."""

    forward: float
    gradients: tuple[float, ...]

    @property
    def backward(self) -> float:
        """The largest error of the gradients."""
        return max(self.gradients, default=0.0)


def measure_roundings(
    function: Callable[..., torch.Tensor], arguments: Sequence[torch.Tensor], conditions: Conditions
) -> Roundings:
    """Measure the error of ``function`` in mixed precision on float32 ``arguments``, relative to float64.

    The exact values are computed from the arguments rounded to the low dtype, as autocast casts them, so that only the
    operator's error is measured. The incoming gradient is random, with values of the low dtype.
    """
    dtype, device = conditions.precision.dtype, conditions.device.torch_device
    rounded = [_leaf(argument.to(dtype).to(torch.float64)) for argument in arguments]
    exact = function(*rounded)
    gradient = torch.randn(exact.shape).to(dtype)
    torch.autograd.backward(exact, gradient.to(torch.float64))
    leaves = [_leaf(argument.to(device)) for argument in arguments]
    with float32_precision("ieee"):
        with conditions.region():
            result = function(*leaves)
        torch.autograd.backward(result, gradient.to(device=device, dtype=result.dtype))
    return Roundings(
        _in_roundings(result, exact, dtype),
        tuple(_in_roundings(_gradient(a), _gradient(b), dtype) for a, b in zip(leaves, rounded, strict=True)),
    )


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _in_roundings(value: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> float:
    """Return E(value, exact) over E of the exact value rounded once; 0 if ``value`` is exact."""
    error = relative_error(value, exact)
    once = relative_error(exact.detach().to(dtype), exact)
    return 0.0 if error == 0 else error / max(once, float(torch.finfo(torch.float32).eps))


@dataclass(frozen=True)
class KnownRounding:
    """Known error of an operator in units of one rounding, with its source."""

    forward: float = 1.0
    gradients: float = 1.0
    source: str = "one rounding, after accumulating in float32"


@functools.cache
def _table() -> list[dict[str, Any]]:
    text = resources.files("pytest_amp.numerics").joinpath("reductions.toml").read_text(encoding="utf-8")
    rows = toml.loads(text)["operators"]
    assert isinstance(rows, list)
    return rows


def known(operator: str, conditions: Conditions) -> KnownRounding:
    """Return the row of ``reductions.toml`` for ``operator`` on a device and dtype, else one rounding."""
    for row in _table():
        here = (
            row["device_type"] == conditions.device.type
            and row.get("dtype", conditions.precision.name) == conditions.precision.name
        )
        here = here and not (
            row.get("without_onednn") and torch_private.cpu_has_onednn_kernels(conditions.precision.name)
        )
        if here and operator in row["names"]:
            return KnownRounding(row.get("forward", 1.0), row.get("gradients", 1.0), row["source"])
    return KnownRounding()


def check_reduction(operator: str, short: Roundings, long: Roundings, conditions: Conditions, observe: Observe) -> None:
    """Compare the errors of ``operator`` in a short and in a long reduction with its known error.

    Raises AmpFailure if either is larger. A sum in float32 is rounded once, however long it is. The error of a sum in
    the low dtype grows at least with the square root of its length.
    """
    data = known(operator, conditions)
    for direction, few, many, limit in (
        ("forward", short.forward, long.forward, data.forward),
        ("backward", short.backward, long.backward, data.gradients),
    ):
        most = limit * MARGIN * conditions.tolerance_scale
        observe(f"{operator}/{direction}", many, kind="ratio", unit="roundings", allowed=most)
        if max(few, many) > most:
            raise AmpFailure(
                f"{operator}, {direction}, has {many:.3g} times the error of one rounding under {conditions}; "
                f"{few:.3g} where its sums are shorter",
                label_before="known",
                before=f"at most {most:.3g}: {' '.join(data.source.split())[:100]}",
                now=conditions.now(f"{many:.3g}"),
                likely="partial sums are rounded to the low dtype, not only the final sum",
            )
