"""Float64 formulas of operators that round intermediate values or have no float64 kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_amp import torch_private
from pytest_amp.numerics.oracle import (
    attention,
    attention_cuda,
    colliding_updates,
    convolution,
    cuda,
    elementwise,
    embedding_bags,
    interpolated,
    multiplied,
    pooling,
    products,
    recurrent,
    recurrent_cuda,
    scattered,
    steps,
    vector_remainders,
)
from pytest_amp.numerics.oracle.operation import LOW, Operation, rounded

Formula = Callable[[Operation], list[Any]]


def layer_norm_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::native_layer_norm_backward`` on a CPU: weight and bias gradients are summed in the input's dtype.

    Rows are added one by one, as on one thread. See LayerNormBackwardKernelImplInternal in
    aten/src/ATen/native/cpu/layer_norm_kernel.cpp.
    """
    grad, x, shape, mean, rstd = operation.args[:5]
    results = torch_private.flat(operation.overload(*operation.args, **operation.kwargs))[0]
    dtype = operation.given[1]
    if operation.rounds and dtype not in (None, torch.float32, torch.float64):
        width = torch.Size(shape).numel()
        terms = grad.reshape(-1, width) * ((x.reshape(-1, width) - mean.reshape(-1, 1)) * rstd.reshape(-1, 1))
        for index, values in ((1, terms), (2, grad.reshape(-1, width))):
            if results[index] is not None:
                results[index] = _running_sum(values, dtype).view_as(results[index])
    return operation.finished(results)


def _running_sum(rows: Tensor, dtype: torch.dtype | None) -> Tensor:
    total = torch.zeros_like(rows[0])
    for row in rows:
        total = rounded(total + row, dtype) if dtype is not None else total + row
    return total


def log_softmax(operation: Operation) -> list[Any]:
    """Compute ``aten::_log_softmax`` in a low dtype on a CPU, rounding the sum of exponentials and its logarithm.

    See vec_log_softmax_lastdim_chunk_kernel in aten/src/ATen/native/cpu/SoftMaxKernel.cpp.
    """
    x, dim, *_ = operation.args
    dtype = operation.given[0]
    if dtype not in LOW or not x.dim() or dim % x.dim() != x.dim() - 1:
        return operation.once()
    shifted = x - x.amax(dim, keepdim=True)
    total = operation.low(shifted.exp().sum(dim, keepdim=True), dtype)
    return operation.finished([shifted - operation.low(total.log(), dtype)])


def softmax_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_softmax_backward_data`` on a CPU before torch 2.9, which rounds the sum of a row."""
    grad, y, dim, _ = operation.args
    total = operation.low((grad * y).sum(dim, keepdim=True), operation.returned[0])
    return operation.finished([(grad - total) * y])


def log_softmax_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_log_softmax_backward_data`` on a CPU before torch 2.9, which rounds the sum of a row."""
    grad, y, dim, _ = operation.args
    total = operation.low(grad.sum(dim, keepdim=True), operation.returned[0])
    return operation.finished([grad - y.exp() * total])


def logsumexp(operation: Operation) -> list[Any]:
    """Compute ``aten::logsumexp`` on a CPU from operators in the low dtype, each of which rounds its result.

    See logsumexp_out_impl in aten/src/ATen/native/ReduceOps.cpp.
    """
    x, dim = operation.args[:2]
    keep = bool(operation.argument(2, "keepdim"))
    dtype = operation.returned[0]
    largest = x.amax(dim, keepdim=True)
    largest = torch.where(largest.isinf(), torch.zeros_like(largest), largest)
    weights = operation.low(operation.low(x - largest, dtype).exp(), dtype)
    total = operation.low(operation.low(weights.sum(dim, keepdim=True), dtype).log(), dtype) + largest
    return operation.finished([total if keep else total.squeeze(dim)])


def glu_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::glu_backward`` on a CPU from a rounded sigmoid.

    See glu_backward_cpu_out in aten/src/ATen/native/GatedLinearUnit.cpp.
    """
    grad, x, dim = operation.args[:3]
    half, gate = x.chunk(2, dim)
    gate = operation.low(gate.sigmoid(), operation.returned[0])
    return operation.finished([torch.cat([gate * grad, (1 - gate) * gate * half * grad], dim)])


def power(operation: Operation) -> list[Any]:
    """Compute ``aten::pow.Tensor_Scalar`` on a CPU, which rounds the exponent to the dtype of ``x``.

    In bf16 the exponents 3, -2 and -0.5 have kernels of their own, which round an intermediate square or root. See
    pow_tensor_scalar_optimized_kernel and pow_tensor_scalar_kernel in aten/src/ATen/native/cpu/PowKernel.cpp.
    """
    x, exponent = operation.args[:2]
    dtype = operation.returned[0]
    if dtype not in LOW:
        return operation.once()
    if exponent == -0.5:
        return vector_remainders.inverse_root(operation)
    if exponent in (3, -2) and dtype == torch.bfloat16:
        square = operation.low(x * x, dtype)
        return operation.finished([square * x if exponent == 3 else 1 / square])
    return operation.finished([x ** float(torch.tensor(exponent, dtype=torch.float64).to(dtype))])


def softmax(operation: Operation) -> list[Any]:
    """Compute ``aten::_softmax`` on a CPU: the exponentials in vector remainders are rounded, except over the last dim.

    The kernel stores the exponentials of columns after the last whole vector in the result, which rounds them before
    they are divided by their sum. See vec_softmax in aten/src/ATen/native/cpu/SoftMaxKernel.cpp.
    """
    x, dim, *_ = operation.args
    dtype = operation.returned[0]
    if dtype not in LOW or not x.dim() or dim % x.dim() == x.dim() - 1:
        return operation.once()
    moved = x.movedim(dim, 0)
    flat = moved.reshape(moved.shape[0], -1, math.prod(x.shape[dim % x.dim() + 1 :]))
    weights = (flat - flat.amax(0, keepdim=True)).exp()
    total = weights.sum(0, keepdim=True)
    whole = flat.shape[-1] // vector_remainders.lanes() * vector_remainders.lanes()
    stored = torch.cat([weights[..., :whole], operation.low(weights[..., whole:], dtype)], -1)
    return operation.finished([(stored / total).reshape(moved.shape).movedim(0, dim)])


def embedding_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::embedding_dense_backward`` on a CPU: the rows of a repeated index are summed in the low dtype.

    See embedding_dense_backward_cpu_loop in aten/src/ATen/native/Embedding.cpp.
    """
    grad, indices, count, padding, by_frequency = operation.args
    dtype = operation.returned[0]
    if dtype not in LOW or by_frequency:
        return operation.once()
    result = grad.new_zeros(count, grad.shape[-1])
    for index, row in zip(indices.flatten().tolist(), grad.reshape(-1, grad.shape[-1]), strict=True):
        if index != padding:
            result[index] = operation.low(result[index] + row, dtype)
    return operation.finished([result])


def batch_norm(operation: Operation) -> list[Any]:
    """Compute ``aten::native_batch_norm`` on a CPU with statistics in the low dtype, to which the batch's are rounded.

    In bf16 the sum of squares, their number and the variance are rounded as well (measured, torch 2.13). See
    batch_norm_cpu_update_stats_template in aten/src/ATen/native/Normalization.cpp.
    """
    dtype = operation.returned[1] if len(operation.returned) > 1 else None
    x, weight, bias, _, _, training, _, eps = operation.args
    if dtype not in LOW or not training:
        return operation.once()
    dims, shape = [0, *range(2, x.dim())], (1, -1, *[1] * (x.dim() - 2))
    operation.overload(*operation.args)  # updates the running statistics in place; its results are not used
    mean = operation.low(x.mean(dims), dtype)
    squares, count = (x - x.mean(dims).view(shape)).square().sum(dims), x.numel() // x.shape[1]
    variance_dtype = dtype if dtype == torch.bfloat16 else None
    rounded_count = operation.low(torch.tensor(float(count), dtype=x.dtype, device=x.device), variance_dtype)
    variance = operation.low(operation.low(squares, variance_dtype) / rounded_count, variance_dtype)
    scale = operation.low((variance + eps).rsqrt(), dtype)
    result = (x - mean.view(shape)) * scale.view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return operation.finished([result, mean, scale])


def batch_norm_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::native_batch_norm_backward`` on a CPU for tensors of different memory formats.

    The kernels are only for two contiguous or two channels-last tensors. For other ones torch computes the gradient of
    the input by operators in the low dtype, each of which rounds, from a sum of gradients in the low dtype. See
    batch_norm_backward_cpu_template in aten/src/ATen/native/Normalization.cpp.
    """
    grad, x, weight, running_mean, running_var, mean, invstd, train, eps, mask = operation.args[:10]
    dtype = operation.given[1]
    if dtype not in LOW or _share_a_format(x, grad):
        return operation.once()
    if not train:
        mean, invstd = running_mean, (running_var + eps).rsqrt()
    dims, shape, count = [0, *range(2, x.dim())], (1, -1, *[1] * (x.dim() - 2)), x.numel() // x.shape[1]
    centred, total = x - mean.view(shape), operation.low(grad.sum(dims), dtype)
    product = (grad * centred).sum(dims)
    scale = invstd if weight is None else invstd * weight
    result = grad
    if train:
        slope = operation.low(operation.low(product, dtype) * invstd * invstd / count, dtype)
        moved = operation.low(grad - operation.low(total / count, dtype).view(shape), dtype)
        result = operation.low(moved - operation.low(centred * slope.view(shape), dtype), dtype)
    gradients = [result * scale.view(shape), product * invstd if mask[1] else None, total if mask[2] else None]
    return operation.finished([value if requested else None for value, requested in zip(gradients, mask, strict=True)])


def _share_a_format(x: Tensor, grad: Tensor) -> bool:
    """Return whether both tensors are dense and of the same memory format, as torch derives it from their strides.

    A (n, c, 1, 1) tensor is contiguous in both formats; its strides determine which one torch assumes.
    """
    return _is_dense(x) and _is_dense(grad) and _has_channels_last_strides(x) == _has_channels_last_strides(grad)


def _is_dense(x: Tensor) -> bool:
    """Return whether ``x`` is contiguous, in the default or in the channels-last format."""
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    return x.is_contiguous() or x.is_contiguous(memory_format=channels_last)


def _has_channels_last_strides(x: Tensor) -> bool:
    """Return whether torch treats ``x`` as channels-last: is_channels_last_strides_2d in c10/core/MemoryFormat.h."""
    if x.dim() not in (4, 5) or not x.numel() or not x.stride(1):
        return False
    smallest_stride = 0
    for dim in (1, *reversed(range(2, x.dim())), 0):
        if x.stride(dim) < smallest_stride or (dim == 0 and smallest_stride == x.stride(1)):
            return False
        smallest_stride = x.stride(dim) * x.shape[dim]
    return True


#: Formulas by overload that the exact run uses, too: there is no float64 kernel, or (in nearest interpolation) the
#: float64 kernel selects other elements than the float32 kernel does.
ALWAYS: dict[str, Formula] = {
    "aten::mkldnn_rnn_layer": recurrent.cpu_forward,
    "aten::mkldnn_rnn_layer_backward": recurrent.cpu_backward,
    **dict.fromkeys(interpolated.NEAREST, interpolated.nearest),
    "aten::_cudnn_rnn": recurrent_cuda.forward,
    "aten::_cudnn_rnn_backward": recurrent_cuda.backward,
    "aten::_scaled_dot_product_flash_attention": attention_cuda.flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": attention_cuda.flash_backward,
    "aten::_scaled_dot_product_efficient_attention": attention_cuda.efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": attention_cuda.efficient_backward,
    "aten::_scaled_dot_product_cudnn_attention": attention_cuda.cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": attention_cuda.cudnn_backward,
}

#: Formulas for CUDA, by model and overload; they take precedence over ``BY_MODEL``.
ON_CUDA: dict[tuple[str, str], Formula] = {
    ("fused", "aten::native_batch_norm_backward"): cuda.batch_norm_backward,
    ("fused", "aten::_thnn_fused_lstm_cell_backward_impl"): cuda.lstm_cell_backward,
    ("fused", "aten::_thnn_fused_gru_cell_backward"): cuda.gru_cell_backward,
    ("running_sum", "aten::embedding_dense_backward"): cuda.embedding_backward,
    ("running_sum", "aten::cumsum"): cuda.cumulative_sum,
    ("running_sum", "aten::logcumsumexp"): cuda.cumulative_logarithm,
    ("running_sum", "aten::cumprod"): cuda.cumulative_product,
    ("fused", "aten::avg_pool2d_backward"): pooling.average_backward_cuda,
    ("either", "aten::addmv"): products.product_and_sum,
    **{("fused", name): interpolated.antialiased for name in interpolated.ANTIALIASED},
    **{("any_order", name): pooling.adaptive_backward_cuda for name in pooling.ADAPTIVE},
    **{("any_order", name): formula for name, formula in colliding_updates.FORMULAS.items()},
    **{("any_order", name): interpolated.backward for name in interpolated.INTERPOLATED},
    **{("any_order", name): scattered.taken_backward for name in scattered.BY_INDICES},
    **{("any_order", name): scattered.padding_backward for name in scattered.PADDING},
    **{("fused", name): steps.in_steps for name in steps.ON_CUDA},
    **{("fused", f"aten::{name}"): elementwise.power_cuda for name in ("pow.Tensor_Scalar", "pow_.Scalar")},
}

#: Formulas by model and overload, for all device types except where ``ON_CUDA`` has one.
BY_MODEL: dict[tuple[str, str], Formula] = {
    ("running_sum", "aten::embedding_dense_backward"): embedding_backward,
    ("running_sum", "aten::native_layer_norm_backward"): layer_norm_backward,
    ("running_sum", "aten::avg_pool2d_backward"): pooling.average_backward_cpu,
    **{("running_sum", name): formula for name, formula in colliding_updates.FORMULAS.items()},
    **{("running_sum", name): scattered.taken_backward for name in scattered.BY_INDICES},
    **{("running_sum", name): scattered.padding_backward for name in scattered.PADDING},
    **{("fused", name): interpolated.forward for name in interpolated.FORWARD},
    **{("fused", f"aten::fractional_max_pool{dims}d"): scattered.fractional_forward for dims in (2, 3)},
    ("running_sum", "aten::col2im"): scattered.columns_to_image,
    ("running_sum", "aten::_embedding_bag_backward"): embedding_bags.backward,
    **{("fused", name): embedding_bags.forward for name in embedding_bags.FORWARD},
    ("fused", "aten::_log_softmax"): log_softmax,
    ("fused", "aten::_log_softmax_backward_data"): log_softmax_backward,
    ("fused", "aten::_softmax_backward_data"): softmax_backward,
    **{("fused", name): pooling.adaptive_backward_cpu for name in pooling.ADAPTIVE},
    ("running_sum", "aten::_adaptive_avg_pool3d"): pooling.adaptive_forward,
    ("fused", "aten::_softmax"): softmax,
    ("fused", "aten::glu_backward"): glu_backward,
    ("fused", "aten::logsumexp"): logsumexp,
    ("fused", "aten::native_batch_norm"): batch_norm,
    ("fused", "aten::native_batch_norm_backward"): batch_norm_backward,
    **{("fused", f"aten::{name}"): power for name in ("pow.Tensor_Scalar", "pow_.Scalar")},
    **{("two_step", f"aten::{name}"): convolution.in_two_steps for name in convolution.NAMES},
    **{("fused", name): steps.in_steps for name in steps.STEPS},
    ("fused", "aten::renorm"): steps.scaled_to_a_norm,
    ("fused", "aten::affine_grid_generator"): steps.affine_grid,
    ("fused", "aten::addr"): products.outer,
    ("unmodelled", "aten::_trilinear"): products.trilinear,
    **{("fused", f"aten::scatter_reduce{end}.two"): colliding_updates.scatter_mean_cpu for end in ("", "_")},
    ("fused", "aten::logit"): elementwise.logit,
    **{("fused", f"aten::index_add{end}"): colliding_updates.index_add_cpu for end in ("", "_")},
    **{("fused", f"aten::{name}"): elementwise.quotient for name in elementwise.QUOTIENTS},
    **{("fused", f"aten::{name}"): elementwise.times_logarithm for name in elementwise.TIMES_LOGARITHM},
    **{(model, "aten::conv_tbc"): convolution.over_time for model in ("fused", "either")},
    **{(model, "aten::conv_tbc_backward"): convolution.over_time_backward for model in ("fused", "either")},
    ("either", "aten::mm"): Operation.once,
    ("either", "aten::rsqrt"): vector_remainders.root,
    **{("either", f"aten::{name}"): multiplied.by_vectors for name in ("prod", "prod.dim_int")},
    ("either", "aten::add.Tensor"): vector_remainders.multiple,
    ("either", "aten::sub.Tensor"): vector_remainders.multiple,
    **{(model, "aten::addbmm"): products.batch_by_batch for model in ("running_sum", "either", "unmodelled")},
    ("either", "aten::addmm"): products.product_and_sum,
    ("either", "aten::addmv"): products.matrix_and_vector,
    ("either", "aten::baddbmm"): products.product_and_sum,
    ("fused", "aten::_scaled_dot_product_flash_attention_for_cpu"): attention.cpu_forward,
    ("fused", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"): attention.cpu_backward,
}

#: Alternatives of the formulas of the model ``either``, by overload; that of an unlisted overload is one rounding.
OTHER_WAYS: dict[str, tuple[Callable[[Operation], Iterator[list[Any]]], ...]] = {
    "aten::mm": (products.in_parts,),
    **dict.fromkeys(("aten::addmv", "aten::baddbmm"), (products.once, products.in_two_steps)),
    "aten::addmm": (products.once, products.in_two_steps, products.in_parts),
    "aten::rsqrt": (vector_remainders.root_in_steps,),
    **dict.fromkeys(("aten::prod", "aten::prod.dim_int"), (multiplied.sequential,)),
    **dict.fromkeys(("aten::add.Tensor", "aten::sub.Tensor"), (vector_remainders.multiple_in_steps,)),
    "aten::addbmm": (products.batch_by_batch_in_two_steps,),
    "aten::conv_tbc": (convolution.over_time_in_two_steps,),
    "aten::conv_tbc_backward": (convolution.over_time_backward_in_two_steps,),
}
