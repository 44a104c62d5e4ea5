"""Planted defects of models' steps: losses, ranges, statistics and sums of micro-batches."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.planted.changes import after_accumulation, rounded, with_gradient
from tests.planted.kernels import LOW_DTYPES, Overridden, override, replace_kernel
from tests.planted.table import defect, swap


@defect(
    "GRUs under autocast detach their recurrent weights",
    caught_by="gradients/test_layers.py::test_layer[cpu-bf16-GRU]",
    replaces="torch._VF.gru",
)
def recurrent_weights_get_no_gradient(
    original: Any, x: Tensor, states: Tensor, weights: Sequence[Tensor], *settings: Any
) -> Any:
    if torch.is_autocast_enabled(x.device.type):
        # A layer has four: input and recurrent weights, and a bias of each.
        weights = [weight.detach() if place % 4 == 1 else weight for place, weight in enumerate(weights)]
    return original(x, states, weights, *settings)


@defect(
    "embedding under autocast detaches its weight from the graph",
    caught_by="gradients/test_zoo.py::test_step[cpu-bf16-decoder]",
    overrides="embedding",
)
def embedding_gradient_lost(call: Overridden) -> Any:
    return replace(call, args=(call.args[0].detach(), *call.args[1:])).run()


@defect(
    "The gradient of LayerNorm's weight under autocast is rounded to the autocast dtype",
    caught_by="gradients/test_zoo.py::test_step[cpu-bf16-decoder]",
    overrides="layer_norm",
)
def layer_norm_weight_gradient_rounded(call: Overridden) -> Any:
    dtype = call.low
    x, shape, weight, *rest = call.args
    if weight is not None:
        weight = with_gradient(weight, lambda g: rounded(g, dtype))
    changed = replace(call, args=(x, shape, weight, *rest))
    return changed.run() if call.device_type == "cpu" else changed.cast(torch.float32).run()


@defect(
    "Each product of linear is scaled by an unseeded random number",
    caught_by="gradients/test_zoo.py::test_step[cpu-bf16-mlp]",
)
def linear_draws_unseeded() -> None:
    #: What the operating system draws: no seed reaches it.
    numbers = random.SystemRandom()

    def scaled(*args: Any, **kwargs: Any) -> torch.Tensor:
        product: torch.Tensor = original(*args, **kwargs)
        return product * (1 + numbers.gauss(0, 1) / 8)

    original = swap(torch.nn.functional, "linear", scaled)


@defect(
    "The gradient of gelu is three per cent too large, but for float64",
    caught_by="gradients/test_zoo.py::test_step[cpu-bf16-mlp]",
)
def gelu_gradient_three_per_cent_off() -> None:
    def gelu_backward(gradient: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        y, g = x.to(wide), gradient.to(wide)
        share = 0.5 * (1 + torch.erf(y * math.sqrt(0.5)))
        slope = share + y * torch.exp(-0.5 * y * y) / math.sqrt(2 * math.pi)
        return (g * slope * (1.0 if x.dtype == torch.float64 else 1.03)).to(x.dtype)

    replace_kernel("gelu_backward", gelu_backward)


@defect(
    "The CPU's log_softmax of float32 tensors, which cross-entropy uses, computes in bfloat16",
    caught_by="gradients/test_zoo.py::test_step[cpu-bf16-mlp]",
)
def log_softmax_of_float32_in_low_precision() -> None:
    def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        inner = x.to(torch.bfloat16) if x.dtype == torch.float32 else x
        shifted = inner - inner.amax(dim, keepdim=True)
        return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(x.dtype)

    replace_kernel("_log_softmax", log_softmax)


@defect(
    "The CPU's mm of 16-bit matrices accumulates in steps of 8 in backward passes, and rounds after each",
    caught_by="gradients/test_wider_zoo.py::test_step[cpu-bf16-adapters]",
)
def mm_loses_sums_going_back() -> None:
    step = 8

    def mm(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype not in LOW_DTYPES or torch._C._current_autograd_node() is None:
            return torch.bmm(a[None], b[None])[0]
        total: Tensor | None = None
        for i in range(0, a.shape[1], step):
            part = torch.bmm(a[None, :, i : i + step], b[None, i : i + step])[0]
            total = part if total is None else total + part
        assert total is not None
        return total

    replace_kernel("mm", mm)


@defect(
    "The kernels of linear layers round float16 results to bfloat16 first: both formats have the same error",
    caught_by="gradients/test_wider_zoo.py::test_real_errors_differ_by_their_bits[cpu-bf16-loss_mse]",
)
def products_of_fp16_by_way_of_bf16() -> None:
    def by_way_of_bf16(values: Tensor) -> Tensor:
        return values.to(torch.bfloat16).to(values.dtype) if values.dtype == torch.float16 else values

    def addmm(bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
        return by_way_of_bf16(
            torch.baddbmm(bias.expand(1, a.shape[0], b.shape[1]), a[None], b[None], beta=beta, alpha=alpha)[0]
        )

    def mm(a: Tensor, b: Tensor) -> Tensor:
        return by_way_of_bf16(torch.bmm(a[None], b[None])[0])

    replace_kernel("addmm", addmm)
    replace_kernel("mm", mm)


@defect(
    'Losses with ``reduction="sum"`` compute in the autocast dtype and cast the sum to float32',
    caught_by="gradients/test_losses.py::test_a_loss_is_as_exact_as_its_rule[cpu-bf16-mse-sum]",
)
def summed_losses_low_precision() -> None:
    #: ``at::Reduction::Sum``.
    sum_code = 2

    def low_where_summed(call: Overridden) -> Any:
        reduction = call.kwargs.get("reduction", call.args[2] if len(call.args) > sum_code else 1)
        return call.cast(call.low).run().to(torch.float32) if reduction == sum_code else call.cast(torch.float32).run()

    for name in ("mse_loss", "l1_loss"):
        override(name, low_where_summed)


@defect(
    "cross_entropy under autocast on a CPU computes in the autocast dtype and casts its result to float32",
    caught_by="gradients/test_hollow.py::test_losses_are_not_rounded[cpu-bf16-cross_entropy]",
    not_on_cuda="CUDA has no rule for it, and rounds: an expected failure",
    overrides="cross_entropy_loss",
)
def cross_entropy_low_precision(call: Overridden) -> Any:
    return call.cast(call.low).run().to(torch.float32)


@defect(
    "``torch.prod`` rounds its result to the autocast dtype",
    caught_by="gradients/test_hollow.py::test_functions_of_float32_are_not_rounded[cpu-bf16-prod]",
    replaces="torch.prod",
)
def products_are_rounded(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    result = original(x, *args, **kwargs)
    if result.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
        return result.to(torch.get_autocast_dtype(x.device.type)).float()
    return result


@defect(
    "max_unpool2d drops the maxima of the last channel, but for float64",
    caught_by="gradients/test_modules.py::test_module[cpu-bf16-MaxUnpool2d]",
)
def unpooled_maxima_lose_a_channel() -> None:
    def unpooled(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
        height, width = output_size
        result = x.new_zeros(*x.shape[:-2], height * width).scatter(-1, indices.flatten(-2), x.flatten(-2))
        if x.dtype != torch.float64:
            result.select(-2, -1).zero_()
        return result.view(*x.shape[:-2], height, width)

    replace_kernel("max_unpool2d", unpooled)


@defect(
    "AdaptiveLogSoftmaxWithLoss halves the gradients of its rare classes after its first call",
    caught_by="gradients/test_modules.py::test_an_adaptive_softmax_learns_of_rare_classes[cpu-bf16-low]",
    caught_on_cuda_by="gradients/test_modules.py::test_an_adaptive_softmax_learns_of_rare_classes[cuda-bf16-float32]",
    replaces="torch.nn.AdaptiveLogSoftmaxWithLoss.forward",
)
def rare_classes_learn_half(original: Any, module: Any, *args: Any) -> Any:
    result = original(module, *args)

    def halved(gradient: Tensor) -> Tensor:
        return gradient / 2

    for parameter in module.tail.parameters():
        if parameter.requires_grad:
            parameter.register_hook(halved)
    return result


@defect(
    "torch.nn.functional.layer_norm queries autocast's state and computes in its dtype",
    caught_by="gradients/test_queries.py::test_nothing_asks_for_autocast[cpu-bf16-layers]",
    replaces="torch.nn.functional.layer_norm",
)
def layer_norm_asks_for_autocast(
    original: Any, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return original(x, shape, weight, bias, eps)
    low = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        low_parameters = (None if value is None else value.to(low) for value in (weight, bias))
        return original(x.to(low), shape, *low_parameters, eps)


@defect(
    "scaled_dot_product_attention under autocast attends to masked keys, too",
    caught_by="gradients/test_ranges.py::test_masked_attention_is_finite[cpu-bf16-boolean]",
    overrides="scaled_dot_product_attention",
)
def attention_ignores_its_mask(call: Overridden) -> Any:
    kwargs = {name: value for name, value in call.kwargs.items() if name != "attn_mask"}
    return replace(call, args=call.args[:3], kwargs=kwargs).cast(call.low).run()


@defect(
    "scaled_dot_product_attention under autocast turns masked scores into NaN, as infinity times zero does",
    caught_by="gradients/test_ranges.py::test_masked_attention_is_finite[cpu-bf16-infinite]",
    overrides="scaled_dot_product_attention",
)
def attention_mask_becomes_nan(call: Overridden) -> Any:
    mask = call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)
    if mask is None:
        return call.cast(call.low).run()
    hidden = ~mask if mask.dtype == torch.bool else mask < torch.finfo(torch.float16).min / 8
    spoilt = torch.zeros_like(hidden, dtype=call.low).masked_fill(hidden, torch.nan)
    return replace(call, args=call.args[:3], kwargs={**call.kwargs, "attn_mask": spoilt}).cast(call.low).run()


@defect(
    "mse_loss under autocast computes in the autocast dtype and casts its result to float32",
    caught_by="gradients/test_ranges.py::test_losses_leave_the_range_of_the_low_dtype[cpu-fp16-mse_loss]",
    overrides="mse_loss",
)
def mse_loss_low_precision(call: Overridden) -> Any:
    return call.cast(call.low).run().to(torch.float32)


@defect(
    "linear under autocast flushes gradients below one millionth, as a format with less range would",
    caught_by="gradients/test_ranges.py::test_a_gradient_below_the_range_needs_a_scale[cpu-bf16]",
    overrides="linear",
)
def small_gradients_flushed(call: Overridden) -> Any:
    return with_gradient(call.cast(call.low).run(), lambda g: torch.where(g.abs() < 1e-6, 0, g).to(g.dtype))


@defect(
    "BatchNorm under autocast rounds its running statistics to the autocast dtype after each update",
    caught_by="gradients/test_statistics.py::test_statistics_are_float32[cpu-bf16-BatchNorm2d-low]",
)
def batch_norm_statistics_low_precision() -> None:
    mean = 3
    variance = 4
    training = 5

    def batch_norm(call: Overridden) -> Any:
        if not call.args[training]:
            return call.run()
        args = list(call.args)
        statistics = [args[mean], args[variance]]
        args[mean], args[variance] = (None if value is None else value.clone() for value in statistics)
        result = Overridden(call.operator, call.device_type, tuple(args), call.kwargs).run()
        with torch.no_grad():
            for statistic, updated in zip(statistics, (args[mean], args[variance]), strict=True):
                if statistic is not None:
                    statistic.copy_(updated.to(call.low))
        return result

    override("batch_norm", batch_norm)


@defect(
    "BatchNorm under autocast updates its running mean in evaluation mode, too",
    caught_by="gradients/test_statistics.py::test_evaluation_leaves_the_statistics_alone[cpu-bf16]",
    overrides="batch_norm",
)
def batch_norm_updates_in_evaluation(call: Overridden) -> Any:
    x, mean, training = call.args[0], call.args[3], call.args[5]
    result = call.run()
    if not training and mean is not None:
        with torch.no_grad():
            mean += 0.1 * x.float().transpose(0, 1).flatten(1).mean(1)
    return result


@defect(
    "The accumulated gradients of parameters are rounded to bfloat16 after each backward pass",
    caught_by="gradients/test_accumulation.py::test_sums_of_micro_batches_stay_in_float32[cpu-bf16]",
)
def gradients_accumulate_in_low_precision() -> None:
    def round_gradient(parameter: Tensor) -> None:
        if parameter.grad is not None and not parameter.grad.is_sparse:
            parameter.grad.copy_(rounded(parameter.grad, torch.bfloat16))

    after_accumulation(round_gradient)


@defect(
    "linear lengthens its weight's gradient in a Python branch for low precision, which the prediction runs, too",
    caught_by="gradients/test_zoo.py::test_step[cpu-bf16-mlp]",
)
def linear_gradient_is_long_in_low_python() -> None:
    low = (torch.bfloat16, torch.float16)

    class LongGradient(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, weight: Any) -> Any:
            return weight.view_as(weight)

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            return gradient * 1.05

    def linear_with_long_gradient(x: Any, weight: Any, bias: Any = None) -> Any:
        apply: Any = LongGradient.apply
        return original(x, apply(weight) if x.dtype in low else weight, bias)

    original = swap(functional, "linear", linear_with_long_gradient)


@defect(
    "gelu computes something else where it is given a low dtype: its tanh approximation, and three per cent more",
    caught_by="gradients/test_whole_check.py::test_a_network_has_no_findings[cpu-bf16-mlp]",
    # On CUDA the LayerNorm before the GELU of the MLP returns float32.
    caught_on_cuda_by="gradients/test_whole_check.py::test_a_network_has_no_findings[cuda-bf16-decoder]",
    replaces="torch.nn.functional.gelu",
)
def gelu_has_a_low_branch(original: Any, x: Any, approximate: str = "none") -> Any:
    if x.dtype in (torch.bfloat16, torch.float16):
        return original(x, approximate="tanh") * 1.03
    return original(x, approximate=approximate)
