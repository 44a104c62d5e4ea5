"""Planted defects of operators' kernels and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.planted.changes import Function, rounded, with_gradient
from tests.planted.kernels import LOW_DTYPES, Overridden, override, register, replace_kernel
from tests.planted.table import defect


@defect(
    "embedding under autocast rounds the gradient of its float32 weight to the autocast dtype",
    caught_by="gradients/test_operators.py::test_operator[cpu-bf16-embedding]",
    overrides="embedding",
)
def embedding_gradient_rounded(call: Overridden) -> Any:
    dtype = call.low
    weight = with_gradient(call.args[0], lambda g: rounded(g, dtype))
    return replace(call, args=(weight, *call.args[1:])).run()


@defect(
    "The weight gradient of conv2d under autocast is one percent too large",
    caught_by="gradients/test_operators.py::test_operator[cpu-bf16-conv2d]",
    overrides="conv2d",
)
def conv2d_weight_gradient_scaled(call: Overridden) -> Any:
    x, weight, *rest = call.args
    return replace(call, args=(x, with_gradient(weight, lambda g: g * 1.01), *rest)).cast(call.low).run()


@defect(
    "gelu under autocast returns the exact function, and the gradient of its approximation by tanh",
    caught_by="gradients/test_operators.py::test_operator[cpu-bf16-gelu]",
)
def gelu_backward_approximate() -> None:

    class Gelu(Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x)
            return torch.nn.functional.gelu(x)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> Any:
            (x,) = context.saved_tensors
            return torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")

    def gelu(call: Overridden) -> Any:
        with torch.autocast(call.device_type, enabled=False):
            return Gelu.apply(call.args[0]) if not call.kwargs else call.run()

    override("gelu", gelu)


@defect(
    "layer_norm under autocast computes mean and variance of 16-bit inputs in the autocast dtype",
    caught_by="gradients/test_operators.py::test_operator[cpu-bf16-layer_norm_of_low]",
    overrides="layer_norm",
)
def layer_norm_squares_in_low_precision(call: Overridden) -> Any:
    x, shape, weight, bias, eps = (*call.args, 1e-5)[:5]
    if x.dtype != call.low:
        return call.run()
    with torch.autocast(call.device_type, enabled=False):
        dims = tuple(range(-len(shape), 0))
        centred = x - x.mean(dims, keepdim=True)
        normal = centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()
        return normal if weight is None else (normal * weight + bias).to(x.dtype)


@defect(
    "scaled_dot_product_attention under autocast ignores ``scale``",
    caught_by="gradients/test_operators.py::test_operator[cpu-bf16-attention_scaled]",
    overrides="scaled_dot_product_attention",
)
def attention_ignores_its_scale(call: Overridden) -> Any:
    kwargs = {name: value for name, value in call.kwargs.items() if name != "scale"}
    return replace(call, kwargs=kwargs).cast(call.low).run()


@defect(
    "Attention under autocast doubles the gradient of its queries",
    caught_by="gradients/test_operators.py::test_operator[cpu-bf16-attention]",
    overrides="scaled_dot_product_attention",
)
def attention_goes_back_with_another_scale(call: Overridden) -> Any:
    query, *rest = call.args
    return replace(call, args=(with_gradient(query, lambda gradient: 2 * gradient), *rest)).cast(call.low).run()


@defect(
    "The kernel of smooth_l1_loss rounds differences of float32 to bfloat16",
    caught_by="gradients/test_registered_operators.py::test_operator_with_a_rule[cpu-bf16-smooth_l1_loss]",
)
def smooth_l1_kernel_rounded() -> None:
    def smooth_l1(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
        far = (x - target).abs()
        far = far.to(torch.bfloat16).to(far.dtype) if far.dtype == torch.float32 else far
        losses = torch.where(far < beta, far * far / (2 * beta), far - beta / 2)
        return losses.mean() if reduction == 1 else losses.sum() if reduction else losses

    replace_kernel("smooth_l1_loss", smooth_l1)


@defect(
    "scaled_dot_product_attention doubles its scale in every dtype, float64 included: only a formula can tell",
    caught_by="kernels/test_formulas.py::test_operator_is_its_formula[cpu-bf16-attention]",
)
def attention_scale_doubled_everywhere() -> None:
    def attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["scale"] = 2 * (kwargs.get("scale") or q.shape[-1] ** -0.5)
        return original(q, k, v, *args, **kwargs)

    original = torch.ops.aten.scaled_dot_product_attention.default.decompose
    for key in ("AutogradCPU", "AutogradCUDA"):
        register("scaled_dot_product_attention", attention, key)


@defect(
    "embedding under autocast rounds the gradient of a float32 weight of more than a thousand rows",
    caught_by="kernels/test_formulas.py::test_each_read_of_a_row_counts[cpu-bf16-embedding-of a large table]",
    overrides="embedding",
)
def gradients_of_large_tables_are_rounded(call: Overridden) -> Any:
    weight, dtype = call.args[0], call.low
    if weight.shape[0] > 1000:
        weight = with_gradient(weight, lambda g: rounded(g, dtype))
    return replace(call, args=(weight, *call.args[1:])).run()


@defect(
    "The gradients of causal attention with more than 32 queries ignore the mask",
    caught_by="kernels/test_formulas.py::test_operator_is_its_formula[cpu-bf16-attention_long_causal]",
    replaces="torch.nn.functional.scaled_dot_product_attention",
)
def causal_attention_goes_back_unmasked(
    original: Any, q: Any, k: Any, v: Any, *args: Any, is_causal: bool = False, **kwargs: Any
) -> Any:
    result = original(q, k, v, *args, is_causal=is_causal, **kwargs)
    if not is_causal or q.shape[-2] <= 32:
        return result
    free = original(q, k, v, *args, **kwargs)
    return free + (result - free).detach()


@defect(
    "Attention without a mask ignores all keys but the first 512",
    caught_by="kernels/test_formulas.py::test_operator_is_its_formula[cpu-bf16-attention_long]",
    replaces="torch.nn.functional.scaled_dot_product_attention",
)
def attention_forgets_keys_beyond_512(
    original: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, *args: Any, is_causal: bool = False, **kwargs: Any
) -> Any:
    if attn_mask is None and not is_causal:
        k, v = k[..., :512, :], v[..., :512, :]
    return original(q, k, v, attn_mask, *args, is_causal=is_causal, **kwargs)


@defect(
    "``torch.prod`` of a whole tensor ignores its last element",
    caught_by="kernels/test_formulas.py::test_operator_is_its_formula[cpu-bf16-prod_of_all]",
    replaces="torch.prod",
)
def products_of_all_forget_the_last(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs or x.numel() < 2:
        return original(x, *args, **kwargs)
    return original(x.flatten()[:-1])


@defect(
    "The gradient of an embedding counts repeated indices once, if there are a thousand indices or more",
    caught_by="kernels/test_formulas.py::test_each_read_of_a_row_counts[cpu-bf16-embedding-many]",
)
def repeated_indices_count_once() -> None:
    def backward(gradient: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool) -> Tensor:
        flat, result = gradient.reshape(-1, gradient.shape[-1]), gradient.new_zeros(rows, gradient.shape[-1])
        if indices.numel() < 1000 and not by_frequency:
            real = indices.reshape(-1) != padding
            return result.index_add(0, indices.reshape(-1)[real], flat[real])
        return result.index_copy(0, indices.reshape(-1), flat)

    replace_kernel("embedding_dense_backward", backward)


@defect(
    "The kernel of avg_pool2d sums 16-bit windows in their own dtype before it divides",
    caught_by="gradients/test_edges.py::test_edges_are_finite[cpu-fp16-avg_pool_beyond_the_range]",
)
def avg_pool_adds_in_low_precision() -> None:
    def avg_pool2d(x: Tensor, kernel_size: list[int], *_options: object) -> Tensor:
        high, wide = kernel_size[0], kernel_size[-1]
        windows = x.unfold(-2, high, high).unfold(-2, wide, wide)
        if x.dtype not in LOW_DTYPES:
            return windows.mean((-2, -1))
        total = windows.new_zeros(windows.shape[:-2])
        for row in windows.unbind(-2):
            for element in row.unbind(-1):
                total = total + element
        return total / (high * wide)

    replace_kernel("avg_pool2d", avg_pool2d)


@defect(
    "logaddexp of low-precision tensors exponentiates in float32, which overflows",
    caught_by="gradients/test_edges.py::test_edges_are_finite[cpu-bf16-logaddexp]",
    replaces="torch.logaddexp",
)
def logaddexp_overflows(original: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    low = x.dtype in LOW_DTYPES
    return (x.float().exp() + y.float().exp()).log().to(x.dtype) if low else original(x, y)


@defect(
    "layer_norm computes the variance as the mean of squares less the square of the mean",
    caught_by="gradients/test_edges.py::test_edges_are_finite[cpu-fp16-layer_norm_of_near_numbers]",
    replaces="torch.nn.functional.layer_norm",
)
def layer_norm_in_one_pass(
    original: Any, x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if weight is not None or x.dtype is torch.float64:
        return original(x, shape, weight, bias, eps)
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.square().mean(-1, keepdim=True) - mean.square()
    return ((wide - mean) * (variance.relu() + eps).rsqrt()).to(x.dtype)


@defect(
    "The gradient of the norm of low-precision zeros is NaN",
    caught_by="gradients/test_edges.py::test_edges_are_finite[cpu-bf16-norm_of_zeros]",
    replaces="torch.Tensor.norm",
)
def norms_of_zeros_have_no_gradient(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if x.dtype in LOW_DTYPES and set(kwargs) == {"dim"} and not args:
        return x.square().sum(**kwargs).sqrt()
    return original(x, *args, **kwargs)


@defect(
    "clamp of low-precision tensors replaces NaN by the lower bound",
    caught_by="kernels/test_exact.py::test_what_is_no_number_stays_none[cpu-bf16-clamp, nan]",
    replaces="torch.Tensor.clamp",
)
def clamp_hides_nan(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = original(x, *args, **kwargs)
    return result.nan_to_num(nan=-1.0) if x.dtype in LOW_DTYPES else result


@defect(
    "topk of bfloat16 compares in float16, where large values are infinite",
    caught_by="kernels/test_exact.py::test_a_choice_among_low_numbers_is_that_among_wide_ones[cpu-bf16-topk]",
    replaces="torch.Tensor.topk",
)
def topk_goes_by_way_of_fp16(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    result = original(x.half() if x.dtype is torch.bfloat16 else x, *args, **kwargs)
    return type(result)((result.values.to(x.dtype), result.indices))


@defect(
    "leaky_relu in place ignores ``negative_slope``",
    caught_by="kernels/test_exact.py::test_in_place_is_what_a_new_tensor_would_be[cpu-bf16-leaky_relu]",
    replaces="torch.nn.functional.leaky_relu",
)
def leaky_relu_in_place_forgets_its_slope(
    original: Any, x: Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> Any:
    return original(x, 0.01 if inplace else negative_slope, inplace)


@defect(
    "The gradient of amax of low-precision tensors goes whole to each of several equal maxima",
    caught_by="kernels/test_exact.py::test_gradients_at_kinks_are_those_of_wide_numbers[cpu-bf16-amax]",
    replaces="torch.Tensor.amax",
)
def each_maximum_gets_the_whole_gradient(original: Any, x: torch.Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    result = original(x, dim, keepdim)
    if x.dtype not in LOW_DTYPES or dim != -1:
        return result
    count = (x.detach() == result.detach().unsqueeze(-1)).sum(-1)
    return result * count - (result * (count - 1)).detach()
