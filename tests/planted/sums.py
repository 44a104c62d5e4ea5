"""Planted defects of long sums: accumulation in low precision, on one thread and on several."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tests.planted.changes import Function, rounded, with_gradient
from tests.planted.kernels import LOW_DTYPES, Overridden, override, register, replace_kernel
from tests.planted.table import defect


@defect(
    "linear, mm, bmm and matmul accumulate in steps of 16, and round to the autocast dtype after each",
    caught_by="gradients/test_reductions.py::test_sums_over_features[cpu-bf16-linear]",
)
def low_precision_accumulation() -> None:
    step = 16

    def multiply_in_steps(a: Tensor, b: Tensor) -> Tensor:
        parts = [a[..., i : i + step] @ b[..., i : i + step, :] for i in range(0, a.shape[-1], step)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def multiply(call: Overridden) -> Tensor:
        if any(tensor.dtype == torch.float64 for tensor in call.floats()) or call.args[1].dim() < 2:
            return call.run()  # type: ignore[no-any-return]
        a, b, *bias = call.cast(call.low).args
        with torch.autocast(call.device_type, enabled=False):
            product = multiply_in_steps(a, b.mT if call.operator == "linear" else b)
            return product + bias[0] if bias and bias[0] is not None else product

    for name in ("linear", "mm", "bmm", "matmul"):
        override(name, multiply)


@defect(
    "The kernel of linear, below autocast, accumulates 16-bit tensors in steps of 16, and rounds after each",
    caught_by="gradients/test_reductions.py::test_sums_over_features[cpu-fp16-linear]",
)
def kernel_accumulates_in_low_precision() -> None:
    low_step = 16

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        step = low_step if x.dtype in (torch.bfloat16, torch.float16) else x.shape[-1]
        total: Tensor | None = None
        for i in range(0, x.shape[-1], step):
            part = torch.matmul(x[..., i : i + step], weight[:, i : i + step].mT)
            total = part if total is None else total + part
        assert total is not None
        return total if bias is None else total + bias

    for key in ("AutogradCPU", "AutogradCUDA"):
        register("linear", linear, key)


@defect(
    "The gradients of linear under autocast accumulate the batch in steps of 16, and round after each",
    caught_by="gradients/test_reductions.py::test_sums_over_the_batch[cpu-bf16-linear]",
)
def backward_products_in_low_precision() -> None:
    step = 16

    class Linear(Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            context.save_for_backward(x, weight)
            context.has_bias = bias is not None
            return torch.nn.functional.linear(x, weight, bias)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            x, weight = context.saved_tensors
            rows, incoming = x.flatten(0, -2), gradient.flatten(0, -2)
            total = torch.zeros_like(weight)
            for i in range(0, rows.shape[0], step):
                total = total + incoming[i : i + step].mT @ rows[i : i + step]
            return gradient @ weight, total, incoming.sum(0) if context.has_bias else None

    def linear(call: Overridden) -> Any:
        x, weight, *bias = call.cast(call.low).args
        with torch.autocast(call.device_type, enabled=False):
            return Linear.apply(x, weight, bias[0] if bias else None)

    override("linear", linear)


@defect(
    "``addbmm`` under autocast accumulates long rows in steps of 16, and rounds after each",
    caught_by="gradients/test_reductions.py::test_sums_over_features[cpu-bf16-addbmm]",
    overrides="addbmm",
)
def addbmm_adds_up_low(call: Overridden) -> object:
    low = call.cast(call.low)
    total, first, second = low.args
    if first.shape[-1] < 256 or first.dtype is torch.float64 or low.kwargs:
        return low.run()
    for a, b in zip(first.split(16, -1), second.split(16, 1), strict=True):
        total = replace(low, args=(total, a, b)).run()
    return total


@defect(
    "A product of two long vectors under autocast accumulates in steps of 16, and rounds after each",
    caught_by="gradients/test_reductions.py::test_sums_over_features[cpu-bf16-matmul of vectors]",
    overrides="matmul",
)
def dots_add_up_low(call: Overridden) -> object:
    x, y = call.cast(call.low).args
    if x.dim() != 1 or y.dim() != 1 or x.numel() < 256 or x.dtype is torch.float64:
        return call.cast(call.low).run()
    parts = [(a.float() * b.float()).sum().to(call.low) for a, b in zip(x.split(16), y.split(16), strict=True)]
    return reduce(torch.add, parts)


@defect(
    "A 1x1 convolution under autocast accumulates its channels in steps of 16, and rounds after each",
    caught_by="gradients/test_reductions.py::test_sums_over_features[cpu-bf16-conv2d of one pixel]",
    overrides="conv2d",
)
def convolutions_of_one_pixel_add_up_low(call: Overridden) -> object:
    low = call.cast(call.low)
    x, weight, bias, *rest = (*low.args, None)[: max(3, len(low.args))]
    groups = rest[3] if len(rest) > 3 else 1
    if weight.shape[-1] > 1 or weight.shape[1] < 128 or bias is not None or x.dim() < 4 or groups > 1:
        return low.run()
    parts = zip(x.split(16, 1), weight.split(16, 1), strict=True)
    return reduce(torch.add, (replace(low, args=(*part, None, *rest)).run() for part in parts))


@defect(
    "The CPU's mean of 16-bit rows accumulates in steps of 64, and rounds after each",
    caught_by="kernels/test_long_operators.py::test_sums_do_not_lose_with_length[cpu-bf16-mean]",
)
def mean_accumulates_in_low_precision() -> None:
    step = 64

    def mean(x: Tensor, dim: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        dims = dim or list(range(x.dim()))
        count = 1
        for reduced in dims:
            count *= x.shape[reduced]
        if x.dtype not in LOW_DTYPES or dtype is not None or len(dims) != 1:
            sum_dtype = dtype or (torch.float32 if x.dtype in LOW_DTYPES else x.dtype)
            return (torch.sum(x, dims, keepdim, dtype=sum_dtype) / count).to(dtype or x.dtype)
        total: Tensor | None = None
        for part in torch.split(x, step, dims[0]):
            part_sum = torch.sum(part, dims, keepdim)
            total = part_sum if total is None else total + part_sum
        assert total is not None
        return total / count

    replace_kernel("mean.dim", mean)


@defect(
    "The CPU's index_add of 16-bit tensors keeps only the last row of each index",
    caught_by="kernels/test_long_operators.py::test_sums_do_not_lose_with_length[cpu-bf16-index_add]",
    caught_on_cuda_by="kernels/test_formulas.py::test_operator_is_its_formula[cuda-bf16-index_add]",
)
def index_add_loses_duplicates() -> None:
    def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
        result = x.clone().movedim(dim, 0)
        rows = source.movedim(dim, 0) * alpha
        if x.dtype in LOW_DTYPES:
            result[index] = result[index] + rows
        else:
            result = torch.index_put(result, (index,), rows, accumulate=True)
        return result.movedim(0, dim).contiguous()

    replace_kernel("index_add", index_add)


@defect(
    "The CPU's gelu of 16-bit tensors rounds its second factor before it multiplies: two roundings, not one",
    caught_by="kernels/test_long_operators.py::test_elementwise_functions_round_as_their_model[cpu-bf16-gelu]",
)
def gelu_rounds_twice() -> None:
    def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.to(wide)
        inner = y * math.sqrt(0.5) if approximate == "none" else math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)
        share = 0.5 * (1 + (torch.erf(inner) if approximate == "none" else torch.tanh(inner)))
        return x * share.to(x.dtype)

    replace_kernel("gelu", gelu)


@defect(
    "gelu is two per cent too large, except in float64",
    caught_by="kernels/test_long_operators.py::test_elementwise_functions_round_as_their_model[cpu-bf16-gelu]",
)
def gelu_two_per_cent_off() -> None:
    def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        inner = y * math.sqrt(0.5) if approximate == "none" else math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)
        result = 0.5 * y * (1 + (torch.erf(inner) if approximate == "none" else torch.tanh(inner)))
        return (result if x.dtype == torch.float64 else result * 1.02).to(x.dtype)

    replace_kernel("gelu", gelu)


@defect(
    "The CPU's cumprod of 16-bit tensors accumulates in their dtype",
    caught_by="kernels/test_long_operators.py::test_sums_do_not_lose_with_length[cpu-bf16-cumprod]",
    not_on_cuda="its autocast makes it float32; torch before 2.13 is not checked",
)
def cumprod_in_low_precision() -> None:
    def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        x = x if dtype is None else x.to(dtype)
        total, results = torch.ones_like(x.select(dim, 0)), []
        for factor in x.unbind(dim):
            total = total * factor
            results.append(total)
        return torch.stack(results, dim)

    replace_kernel("cumprod", cumprod)


@defect(
    "The gradient of unfold of a 16-bit image keeps only the last window of each pixel",
    caught_by="kernels/test_long_operators.py::test_sums_do_not_lose_with_length[cpu-bf16-unfold]",
)
def unfold_keeps_the_last_window() -> None:
    def col2im(
        columns: Tensor, size: list[int], kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]
    ) -> Tensor:
        dims = zip(size, kernel, dilation, padding, stride, strict=True)
        rows, cols = [(total + 2 * pad - gap * (width - 1) - 1) // step + 1 for total, width, gap, pad, step in dims]
        windows = columns.reshape(*columns.shape[:-2], -1, *kernel, rows, cols)
        padded = [total + 2 * pad for total, pad in zip(size, padding, strict=True)]
        result = windows.new_zeros(*windows.shape[:-4], *padded)
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                y = slice(i * dilation[0], i * dilation[0] + stride[0] * (rows - 1) + 1, stride[0])
                x = slice(j * dilation[1], j * dilation[1] + stride[1] * (cols - 1) + 1, stride[1])
                before = 0 if columns.dtype in LOW_DTYPES else result[..., y, x]
                result[..., y, x] = before + windows[..., i, j, :, :]
        inside = [slice(pad, pad + total) for total, pad in zip(size, padding, strict=True)]
        return result[..., inside[0], inside[1]].contiguous()

    replace_kernel("col2im", col2im)


@defect(
    "Bilinear interpolation of 16-bit images computes positions in their dtype",
    caught_by="kernels/test_long_operators.py::test_sums_do_not_lose_with_length[cpu-bf16-interpolate_to_a_size]",
    not_on_cuda="its autocast interpolates in float32",
)
def places_of_pixels_are_low() -> None:
    def weights(x: Tensor, size: int, count: int, scale: float | None, *, aligned: bool) -> Tensor:
        """Return the weight of each of ``size`` pixels in each of ``count`` results."""
        index = torch.arange(count, dtype=torch.float64)
        if aligned:
            position = index * ((size - 1) / max(count - 1, 1))
        else:
            position = (index + 0.5) * (1 / scale if scale else size / count) - 0.5
        position = position.clamp(0, size - 1)
        if x.dtype in LOW_DTYPES:
            position = position.to(x.dtype).to(torch.float64)
        return (1 - (position[:, None] - torch.arange(size)).abs()).clamp_min(0).to(x.device)

    def bilinear(
        x: Tensor, size: list[int], aligned: bool, scale_h: float | None = None, scale_w: float | None = None
    ) -> Tensor:
        vertical = weights(x, x.shape[-2], size[0], scale_h, aligned=aligned)
        horizontal = weights(x, x.shape[-1], size[1], scale_w, aligned=aligned)
        return (vertical @ x.double() @ horizontal.T).to(x.dtype)

    replace_kernel("upsample_bilinear2d", bilinear)


@defect(
    "The CPU's mse_loss rounds a float32 result to bfloat16 values, inside a region and outside",
    caught_by="gradients/test_long_losses.py::test_losses_and_their_gradients[cpu-bf16-mse]",
)
def mse_kernel_is_hollow() -> None:
    def mse_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
        squares = (x - y).square()
        result = squares if reduction == 0 else squares.sum() / (squares.numel() if reduction == 1 else 1)
        return result.to(torch.bfloat16).to(result.dtype) if result.dtype == torch.float32 else result

    replace_kernel("mse_loss", mse_loss)


@defect(
    "The CPU's prod of low-precision tensors ignores every second element",
    caught_by=(
        "kernels/test_long_operators.py::test_products_outside_of_a_region_round_as_their_model[cpu-bf16-of rows]"
    ),
    not_on_cuda="the defect is in the CPU's kernel",
)
def low_precision_prod_ignores_half() -> None:
    def prod(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        x = x if dtype is None else x.to(dtype)
        factors = x.movedim(dim, -1)
        factors = factors[..., ::2] if x.dtype in LOW_DTYPES else factors
        result = factors.cumprod(-1)[..., -1] if x.shape[dim] else x.new_ones(factors.shape[:-1])
        return result.unsqueeze(dim) if keepdim else result

    replace_kernel("prod.dim_int", prod)


@defect(
    "bmm on several threads adds the partial sums of the threads in low precision",
    caught_by="kernels/test_several_threads.py::test_several_threads_compute_what_one_computes[cpu-bf16-bmm]",
    not_on_cuda="the defect is in the CPU's threads",
)
def bmm_on_several_threads_adds_in_low_precision() -> None:
    def bmm(call: Overridden) -> Any:
        call = call.cast(call.low)
        left, right = call.args
        if torch.get_num_threads() == 1 or left.dtype not in LOW_DTYPES:
            return call.run()
        size = math.ceil(left.shape[2] / torch.get_num_threads())
        with torch._C._DisableAutocast():
            parts = [torch.bmm(a, b) for a, b in zip(left.split(size, 2), right.split(size, 1), strict=True)]
            return sum(parts[1:], start=parts[0])

    override("bmm", bmm, device_types=["cpu"])


@defect(
    "layer_norm on several threads rounds the gradient of its weight to bfloat16",
    caught_by=(
        "kernels/test_several_threads.py::"
        "test_several_threads_compute_what_one_computes[cpu-bf16-layer_norm of float32]"
    ),
    not_on_cuda="the defect is in the CPU's threads",
    replaces="torch.nn.functional.layer_norm",
)
def layer_norm_on_several_threads_rounds_weight_gradient(
    original: Any, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if torch.get_num_threads() > 1 and weight is not None and weight.requires_grad:
        weight = with_gradient(weight, lambda gradient: rounded(gradient, torch.bfloat16))
    return original(x, shape, weight, bias, eps)
