"""Float64 formulas of elementwise kernels that compute in the low dtype, rounding every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import LOW, WIDE, Operation

QUOTIENTS = ("div.Tensor_mode", "div_.Tensor_mode", "floor_divide", "floor_divide_")
TIMES_LOGARITHM = (
    *("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "xlogy_.Tensor", "xlogy_.Scalar_Other"),
    *("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"),
)


def quotient(operation: Operation) -> list[Any]:
    """Compute ``aten::div.Tensor_mode`` and ``floor_divide``: the quotient is rounded to the dtype before truncation.

    div_trunc_kernel and div_floor_kernel in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp compute in the dtype for two
    tensors, and in float32 for a scalar divisor. If the quotient is near an integer, this determines the result.
    """
    a, b = (_number(operation.args[place]) for place in (0, 1))
    mode = operation.kwargs.get("rounding_mode", "floor" if "floor_divide" in operation.name else None)
    dtype = operation.returned[0]
    if dtype not in LOW or mode is None:
        return operation.once()
    if b.dim():
        a = operation.low(a, dtype)  # a scalar dividend
    step = dtype if b.dim() else torch.float32
    result = operation.low(a / b, step).trunc() if mode == "trunc" else _floor(operation, a, b, step)
    return operation.finished([result])


def _floor(operation: Operation, a: Tensor, b: Tensor, step: torch.dtype | None) -> Tensor:
    """Compute Python's ``a // b``: div_floor_floating in c10/util/generic_math.h, each step rounded to ``step``."""
    rest = torch.fmod(a, b)
    divided = operation.low(operation.low(a - rest, step) / b, step)
    divided = torch.where((rest != 0) & ((b < 0) != (rest < 0)), operation.low(divided - 1, step), divided)
    result = divided.floor()
    result = torch.where(operation.low(divided - result, step) > 0.5, operation.low(result + 1, step), result)
    return torch.where(b == 0, a / b, torch.where(divided == 0, 0 * (a / b), result))


def times_logarithm(operation: Operation) -> list[Any]:
    """Compute ``aten::xlogy`` and ``special_xlog1py``: scalars and the logarithm are rounded before the product.

    xlogy_kernel and xlog1py_kernel in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp compute in the dtype.
    """
    dtype = operation.returned[0]
    if dtype not in LOW:
        return operation.once()
    x, y = (operation.low(_number(operation.args[place]), dtype) for place in (0, 1))
    logarithm = operation.low(y.log1p() if "log1p" in operation.name else y.log(), dtype)
    return operation.finished([torch.where((x == 0) & ~y.isnan(), 0.0, x * logarithm)])


def logit(operation: Operation) -> list[Any]:
    """Compute ``aten::logit``: the bounds, 1 - x and the quotient are rounded to the dtype.

    logit_mkl_kernel and logit_kernel in aten/src/ATen/native/cpu/UnaryOpsKernel.cpp.
    """
    x, eps, dtype = operation.args[0], operation.argument(1, "eps"), operation.returned[0]
    if dtype not in LOW:
        return operation.once()
    if eps is not None and eps >= 0:
        least = operation.low(_number(eps), dtype)
        most = operation.low(1 - least, dtype)
        x = torch.minimum(torch.maximum(x, least.to(x.device)), most.to(x.device))
    return operation.finished([operation.low(x / operation.low(1 - x, dtype), dtype).log()])


def power_cuda(operation: Operation) -> list[Any]:
    """Compute ``aten::pow.Tensor_Scalar`` on CUDA: the exponent and the square in a cube are rounded to the dtype.

    pow_tensor_scalar_kernel in aten/src/ATen/native/cuda/PowKernel.cu has kernels for roots and reciprocals, which
    round once. pow_tensor_scalar_kernel_impl computes ``base * base * base`` and ``1.0 / (base * base)`` in the dtype.
    """
    x, exponent = operation.args[:2]
    dtype = operation.returned[0]
    if dtype not in LOW or exponent in (0.5, -0.5, -1):
        return operation.once()
    exponent = float(operation.low(_number(exponent), dtype))
    if exponent not in (3, -2):
        return operation.finished([x**exponent])
    square = operation.low(x * x, dtype)
    return operation.finished([square * x if exponent == 3 else 1 / square])


def _number(value: Any) -> Tensor:
    """Return ``value``, a tensor or a number, as a float64 tensor."""
    return torch.as_tensor(value).to(WIDE[False])
