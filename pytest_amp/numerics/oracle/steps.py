"""Float64 formulas of kernels that evaluate expressions in the low dtype, rounding every operation.

On a CPU aten/src/ATen/native/cpu/BinaryOpsKernel.cpp, PointwiseOpsKernel.cpp and UnaryOpsKernel.cpp, on CUDA
BinaryMiscOpsKernels.cu, BinaryMiscBackwardOpsKernels.cu and PointwiseOpsKernel.cu in aten/src/ATen/native/cuda; on both
aten/src/ATen/native/Loss.cpp, which calls operators that each round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pytest_amp import torch_private
from pytest_amp.numerics.oracle.operation import LOW, WIDE, Operation


@dataclass(frozen=True)
class Low:
    """Values of a low dtype: ``low`` rounds to it, and is applied to the result of each operation on them."""

    values: Tensor
    low: Callable[[Tensor], Tensor]

    def then(self, function: Callable[..., Tensor], *operands: Any) -> Low:
        """Apply ``function`` to these values and ``operands``, and round the result."""
        values = [other.values if isinstance(other, Low) else other for other in operands]
        return replace(self, values=self.low(function(self.values, *values)))

    def __add__(self, other: Any) -> Low:
        return self.then(torch.add, other)

    def __sub__(self, other: Any) -> Low:
        return self.then(torch.sub, other)

    def __rsub__(self, other: float) -> Low:
        return self.then(torch.rsub, other)

    def __mul__(self, other: Any) -> Low:
        return self.then(torch.mul, other)

    def __rmul__(self, other: float) -> Low:
        return self.then(torch.mul, other)

    def __truediv__(self, other: Any) -> Low:
        return self.then(torch.div, other)

    def __neg__(self) -> Low:
        return self.then(torch.neg)

    def __abs__(self) -> Low:
        return self.then(torch.abs)

    def __lt__(self, other: Any) -> Tensor:
        less: Tensor = self.values < (other.values if isinstance(other, Low) else other)
        return less

    def where(self, condition: Tensor, other: Low) -> Low:
        """Select elementwise; both operands are already rounded."""
        return replace(self, values=torch.where(condition, self.values, other.values))


def in_steps(operation: Operation) -> list[Any]:
    """Compute the result of an operator of ``STEPS`` on low-precision tensors; scalars are rounded, too."""
    dtype = operation.returned[0]
    if dtype not in LOW or not {*operation.given} <= {dtype, None}:
        return operation.once()

    def converted(argument: Any) -> Any:
        if not isinstance(argument, (Tensor, float)):
            return argument
        values = torch.as_tensor(argument, dtype=WIDE[False])
        return Low(operation.low(values, dtype), lambda numbers: operation.low(numbers, dtype))

    kwargs = {name: converted(value) for name, value in operation.kwargs.items()}
    steps = ON_CUDA if operation.device_type == "cuda" else {}
    result = {**STEPS, **steps}[operation.name](*(converted(value) for value in operation.args), **kwargs)
    return operation.finished([result.values])


_NONE, _MEAN = 0, 1  # aten/src/ATen/core/Reduction.h


def _reduced(losses: Low, reduction: int) -> Low:
    return losses if reduction == _NONE else losses.then(torch.mean if reduction == _MEAN else torch.sum)


def _share(x: Low, reduction: int, times: float = 1.0) -> Low:
    """Return the gradient of one element, ``times`` for a sum and ``times / count`` for a mean over ``x``."""
    share = times / x.values.numel() if reduction == _MEAN else times
    return x.then(lambda values: torch.full((), share, dtype=values.dtype, device=values.device))


def _mse(x: Low, target: Low, reduction: int = _MEAN) -> Low:
    return _reduced((x - target) * (x - target), reduction)


def _mse_backward(grad: Low, x: Low, target: Low, reduction: int) -> Low:
    return _share(x, reduction, 2.0) * (x - target) * grad


def _smooth_l1(x: Low, target: Low, reduction: int = _MEAN, beta: Any = 1.0) -> Low:
    far = abs(x - target)
    return _reduced((0.5 * far * far / beta).where(far < beta, far - 0.5 * beta), reduction)


def _huber(x: Low, target: Low, reduction: int = _MEAN, delta: Any = 1.0) -> Low:
    far = abs(x - target)
    return _reduced((0.5 * far * far).where(far < delta, (far - 0.5 * delta) * delta), reduction)


def _huber_backward(grad: Low, x: Low, target: Low, reduction: int, delta: Low) -> Low:
    """Multiply the derivative first, as vectorized code does; vector remainders use the opposite order."""
    apart = x - target
    bounded = apart.where(abs(apart) < delta, apart.then(torch.sign) * delta)
    return _share(x, reduction) * bounded * grad


def _soft_margin(x: Low, target: Low, reduction: int = _MEAN) -> Low:
    return _reduced((-x * target).then(torch.exp).then(torch.log1p), reduction)


def _soft_margin_backward(grad: Low, x: Low, target: Low, reduction: int) -> Low:
    z = (-target * x).then(torch.exp)
    return target * z * -_share(x, reduction) / (z + 1) * grad


def _cross_entropy_of_logits(
    x: Low, target: Low, weight: Low | None = None, pos_weight: Low | None = None, reduction: int = _MEAN
) -> Low:
    logarithm = x.then(torch.nn.functional.logsigmoid)
    if pos_weight is not None:
        logarithm = logarithm * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * x - logarithm
    return _reduced(loss if weight is None else loss * weight, reduction)


def _entropy(x: Low) -> Low:
    result = -x * x.then(torch.log)
    return replace(result, values=torch.where(x.values > 0, result.values, torch.special.entr(x.values)))


def _cross(x: Low, y: Low, dim: int = -1) -> Low:
    def turned(values: Low, by: int) -> Low:
        return values.then(lambda numbers: numbers.roll(-by, dim))

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)


#: Smallest divisor in the backward of binary cross-entropy: EPSILON in aten/src/ATen/native/Loss.cpp.
LEAST = 1e-12


def _cross_entropy_backward(grad: Low, x: Low, target: Low, weight: Low | None = None, reduction: int = _MEAN) -> Low:
    variance = ((1 - x) * x).then(lambda values: values.clamp_min(LEAST))
    result = grad * (x - target) / variance
    result = result if weight is None else result * weight
    return result / x.values.numel() if reduction == _MEAN else result


def _logit_backward(grad: Low, x: Low, eps: Low | None = None) -> Low:
    result = grad / (x * (1 - x))
    inside = (x.values >= 0) & (x.values <= 1)
    if eps is None or bool(eps < 0):
        return replace(result, values=torch.where(inside, result.values, torch.nan))
    inside = (x.values >= eps.values) & (x.values <= (1 - eps).values)
    return replace(result, values=torch.where(inside, result.values, 0.0))


#: Steps by overload.
STEPS: dict[str, Callable[..., Low]] = {
    "aten::sigmoid_backward": lambda grad, y: grad * (1 - y) * y,
    "aten::tanh_backward": lambda grad, y: grad * (1 - y * y),
    "aten::mse_loss": _mse,
    "aten::mse_loss_backward": _mse_backward,
    "aten::smooth_l1_loss": _smooth_l1,
    "aten::huber_loss": _huber,
    "aten::huber_loss_backward": _huber_backward,
    "aten::soft_margin_loss": _soft_margin,
    "aten::soft_margin_loss_backward": _soft_margin_backward,
    "aten::binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "aten::special_entr": _entropy,
    "aten::linalg_cross": _cross,
    "aten::binary_cross_entropy_backward": _cross_entropy_backward,
    "aten::logit_backward": _logit_backward,
    "aten::ldexp.Tensor": lambda x, power: x * (power.then(torch.exp2) if isinstance(power, Low) else 2.0**power),
}


def _huber_backward_cuda(grad: Low, x: Low, target: Low, reduction: int, delta: Low) -> Low:
    apart = x - target
    share = _share(x, reduction)
    return (share * apart.then(torch.sign) * grad * delta).where(delta < abs(apart), share * apart * grad)


def _smooth_l1_backward_cuda(grad: Low, x: Low, target: Low, reduction: int, beta: Low) -> Low:
    apart = x - target
    share = _share(x, reduction)
    return (share * apart.then(torch.sign) * grad).where(beta < abs(apart), share * apart * grad / beta)


def _smooth_l1_cuda(x: Low, target: Low, reduction: int = _MEAN, beta: Any = 1.0) -> Low:
    """Compute the loss from the distance, which ``abs`` returns in float32."""

    def loss(far: Tensor, size: Any) -> Tensor:
        return torch.where(far < size, far * far / (2 * size), far - size / 2)

    return _reduced(abs(x - target).then(loss, beta), reduction)


def _huber_cuda(x: Low, target: Low, reduction: int = _MEAN, delta: Any = 1.0) -> Low:
    def loss(far: Tensor, size: Any) -> Tensor:
        return torch.where(far < size, far * far / 2, size * (far - size / 2))

    return _reduced(abs(x - target).then(loss, delta), reduction)


def _soft_margin_backward_cuda(grad: Low, x: Low, target: Low, reduction: int) -> Low:
    """Compute the gradient with an unrounded factor for the mean."""
    z = (-target * x).then(torch.exp)
    share = 1 / x.values.numel() if reduction == _MEAN else 1.0
    return target * z * -share / (z + 1) * grad


def _softmax_backward_cuda(grad: Low, y: Low, dim: int, _: Any) -> Low:
    """Compute the gradient from a product that is stored in the low dtype.

    See softmax_backward_cuda_out in aten/src/ATen/native/cuda/SoftMax.cu.
    """
    product = grad * y
    return product.then(lambda values: values - y.values * values.sum(dim, keepdim=True))


#: Steps of kernels that differ between a CPU and CUDA.
ON_CUDA: dict[str, Callable[..., Low]] = {
    "aten::huber_loss": _huber_cuda,
    "aten::huber_loss_backward": _huber_backward_cuda,
    "aten::smooth_l1_loss": _smooth_l1_cuda,
    "aten::smooth_l1_loss_backward": _smooth_l1_backward_cuda,
    "aten::soft_margin_loss_backward": _soft_margin_backward_cuda,
    "aten::_softmax_backward_data": _softmax_backward_cuda,
}


def scaled_to_a_norm(operation: Operation) -> list[Any]:
    """Compute ``aten::renorm``: the factor of each slice, computed in float32, is rounded before the product.

    renorm_out in aten/src/ATen/native/Normalization.cpp.
    """
    x, p, dim, most = operation.args[:4]
    dtype = operation.returned[0]
    if dtype not in LOW:
        return operation.once()
    axes = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    norm = torch_private.find_overload("aten::linalg_vector_norm")(x, p, axes, True)  # noqa: FBT003  # keepdim
    factor = torch.where(norm > most, most / (norm + 1e-7), 1.0)
    return operation.finished([x * operation.low(factor, dtype)])


def affine_grid(operation: Operation) -> list[Any]:
    """Compute ``aten::affine_grid_generator``: positions between -1 and 1 are rounded, as ``linspace`` returns them.

    affine_grid_generator in aten/src/ATen/native/AffineGridGenerator.cpp.
    """
    theta, size, aligned = operation.args[:3]
    dtype = operation.returned[0]
    if dtype not in LOW or not operation.rounds:
        return operation.once()

    def places(count: int) -> Tensor:
        along: Tensor = torch.linspace(-1, 1, count, dtype=dtype, device=theta.device).to(theta.dtype)
        if aligned:
            return along
        return operation.low(operation.low(along * (count - 1), dtype) / count, dtype)

    axes = [places(count) for count in size[2:]]
    grid = [*reversed(torch.meshgrid(*axes, indexing="ij")), theta.new_ones(*size[2:])]
    points = torch.stack(grid, -1).flatten(0, -2) @ theta.mT
    return operation.finished([points.view(size[0], *size[2:], len(axes))])
