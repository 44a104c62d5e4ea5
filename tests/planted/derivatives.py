"""Planted defects of backward passes: derivatives, hooks, dropout and attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.planted.changes import Function, rounded, with_gradient
from tests.planted.kernels import DEVICE, LOW_DTYPES, Overridden, override
from tests.planted.table import defect, swap


@defect(
    "The second derivative of bmm under autocast is halved",
    caught_by="gradients/test_autograd.py::test_second_derivatives[cpu-bf16-bmm]",
)
def products_lose_half_a_second_derivative() -> None:
    class Once(torch.autograd.Function):
        """The identity, going back, too; its own derivative going back is a half."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return Half.apply(gradients[0])  # type: ignore[no-untyped-call]

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] / 2

    def bmm(call: Overridden) -> Any:
        result = call.cast(call.low).run()
        return Once.apply(result) if result.requires_grad else result  # type: ignore[no-untyped-call]

    override("bmm", bmm)


@defect(
    "The second derivative of conv2d under autocast is halved",
    caught_by="gradients/test_autograd.py::test_second_derivatives[cpu-bf16-conv2d]",
)
def convolutions_lose_half_a_second_derivative() -> None:
    class Halved(Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            return gradient / 2

    class Watched(Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Any:
            return Halved.apply(gradient)

    def conv2d(call: Overridden) -> object:
        return Watched.apply(call.cast(call.low).run())

    override("conv2d", conv2d)


@defect(
    "The gradients of reflected elements of ``pad`` are dropped, in every dtype",
    caught_by="kernels/test_derivatives.py::test_gradients_of_operators_are_derivatives[cpu-bf16-pad, reflect]",
    not_on_cuda="the references of every device are computed on a CPU",
    replaces="torch.nn.functional.pad",
)
def reflected_pads_go_back_once(
    original: Any, x: Any, pad: Any, mode: str = "constant", value: float | None = None
) -> Any:
    if mode != "reflect":
        return original(x, pad, mode, value)
    reflected = original(x.detach(), pad, mode)
    outside = original(torch.ones_like(x.detach()), pad) == 0
    return original(x, pad) + reflected * outside


@defect(
    "``kl_div`` gives its target no gradient, in any dtype",
    caught_by="kernels/test_derivatives.py::test_gradients_of_losses_are_derivatives[cpu-bf16-kl_div]",
    not_on_cuda="the references of every device are computed on a CPU",
    replaces="torch.nn.functional.kl_div",
)
def distilled_targets_get_no_gradient(original: Any, x: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    return original(x, target.detach(), *args, **kwargs)


@defect(
    "A GRU's initial state gets half its gradient, in every dtype",
    caught_by="kernels/test_derivatives.py::test_gradients_of_layers_are_derivatives[cpu-bf16-GRU, from a state]",
    not_on_cuda="the references of every device are computed on a CPU",
    replaces="torch.nn.GRU.forward",
)
def hidden_states_get_half_their_gradient(original: Any, self: Any, x: Any, state: Any = None) -> Any:
    if state is not None and state.requires_grad:
        state = with_gradient(state, lambda gradient: gradient / 2)
    return original(self, x, state)


@defect(
    "The second derivative of ``silu`` lacks the terms of its factors, but for that of its sigmoid",
    caught_by="kernels/test_derivatives.py::test_derivatives_of_what_is_smooth[cpu-bf16-silu-2]",
    not_on_cuda="the references of every device are computed on a CPU",
)
def second_derivatives_of_silu_miss_a_term() -> None:

    class Silu(Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            context.save_for_backward(x)
            return torch.ops.aten.silu.default(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            (x,) = context.saved_tensors
            share = torch.sigmoid(x)
            slope: Tensor = gradient * share * (1 + x.detach() * (1 - share.detach()))
            return slope

    def silu(x: Any, inplace: bool = False) -> Any:
        return original(x, inplace) if inplace or not x.requires_grad else Silu.apply(x)

    original = swap(functional, "silu", silu)


@defect(
    "Post-accumulate-grad hooks see the gradient rounded to bfloat16, and it stays so",
    caught_by="gradients/test_hooks.py::test_hooks_after_accumulation_see_the_whole_gradient[cpu-bf16]",
    replaces="torch.Tensor.register_post_accumulate_grad_hook",
)
def late_hooks_see_rounded_gradients(original: Any, self: Any, hook: Any) -> Any:
    def call(parameter: Any) -> None:
        parameter.grad = parameter.grad.bfloat16().to(parameter.grad.dtype)
        hook(parameter)

    return original(self, call)


@defect(
    "The second backward pass through a graph of linear under autocast gives half the gradient",
    caught_by="gradients/test_hooks.py::test_a_graph_that_is_used_twice_gives_its_gradients_twice[cpu-bf16-linear]",
)
def second_backward_is_halved() -> None:

    class Counted(Function):  # type: ignore[misc]
        """The identity, which knows how often its gradient was asked for."""

        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.count = 0
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            context.count += 1
            return gradient if context.count == 1 else gradient / 2

    def linear(call: Overridden) -> object:
        result: Any = call.cast(call.low).run()
        return Counted.apply(result) if result.requires_grad else result

    override("linear", linear)


@defect(
    "The incoming gradient of conv2d under autocast is rounded to two bits if it is not contiguous",
    caught_by="gradients/test_hooks.py::test_strided_gradients_are_as_exact_as_others[cpu-bf16-conv2d]",
)
def strided_gradients_are_rounded() -> None:
    def conv2d(call: Overridden) -> object:
        result: Any = call.cast(call.low).run()
        return with_gradient(result, lambda g: g if g.is_contiguous() else rounded(g, torch.float8_e5m2))

    override("conv2d", conv2d, device_types=[DEVICE])


@defect(
    "Dropout under autocast draws a new mask in its backward pass",
    caught_by="gradients/test_dropout.py::test_both_directions_drop_the_same[cpu-bf16-dropout-low]",
    overrides="dropout",
)
def dropout_masks_differ(call: Overridden) -> Any:
    x, p, train = call.args
    if not train or p == 0:
        return call.run()
    with torch.no_grad(), torch.autocast(call.device_type, enabled=False):
        mask, dropped = (functional.dropout(torch.ones_like(x), p, train) for _ in range(2))
    return with_gradient(x, lambda g: g * dropped) + (x * mask - x).detach()


@defect(
    "Dropout under autocast drops with half its probability",
    caught_by="gradients/test_dropout.py::test_the_share_that_is_dropped[cpu-bf16-dropout]",
    overrides="dropout",
)
def dropout_drops_half_as_much(call: Overridden) -> Any:
    x, p, train = call.args
    return replace(call, args=(x, p / 2, train)).run()


@defect(
    "Dropout under autocast drops in evaluation mode, too",
    caught_by="gradients/test_dropout.py::test_evaluation_drops_nothing[cpu-bf16]",
    overrides="dropout",
)
def dropout_drops_in_evaluation(call: Overridden) -> Any:
    return replace(call, args=(*call.args[:2], True)).run()


@defect(
    "Under autocast recurrent layers drop nothing between their layers, in training mode either",
    caught_by="gradients/test_dropout.py::test_recurrent_layers_drop_between_their_layers[cpu-bf16-GRU]",
)
def recurrent_dropout_ignored() -> None:
    def without_dropout(forward: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            p = self.dropout
            if torch.is_autocast_enabled(DEVICE):
                self.dropout = 0.0
            try:
                return forward(self, *args, **kwargs)
            finally:
                self.dropout = p

        return called

    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        swap(kind, "forward", without_dropout(kind.forward))


@defect(
    "Dropout of a low-precision tensor under autocast is two per cent too large",
    caught_by="gradients/test_dropout.py::test_both_directions_drop_the_same[cpu-bf16-dropout-low]",
    overrides="dropout",
)
def low_dropout_scales_by_too_much(call: Overridden) -> Any:
    result = call.run()
    return result * 1.02 if call.args[2] and call.args[0].dtype in LOW_DTYPES else result


@defect(
    "Dropout of low-precision tensors reuses one mask for each shape",
    caught_by="gradients/test_dropout.py::test_each_call_draws_anew[cpu-bf16-dropout]",
)
def dropout_repeats_its_mask() -> None:
    masks: dict[torch.Size, torch.Tensor] = {}

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not 0 < p < 1 or x.dtype not in (torch.bfloat16, torch.float16):
            return original(x, p, training, inplace)
        if x.shape not in masks:
            masks[x.shape] = torch.rand(x.shape, device=x.device) > p
        return x * masks[x.shape] / (1 - p)

    original = swap(functional, "dropout", dropout)


@defect(
    "Dropout with ``p=1`` gives NaN for low-precision tensors",
    caught_by="gradients/test_dropout.py::test_all_or_nothing[cpu-bf16-low]",
    replaces="torch.nn.functional.dropout",
)
def nothing_is_left_is_nan(
    original: Any, x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    result = original(x, p, training, inplace)
    return result / (1 - p) if p == 1 and x.dtype in (torch.bfloat16, torch.float16) else result


@defect(
    "scaled_dot_product_attention under autocast refuses a float32 mask with low-precision queries",
    caught_by="gradients/test_attention_modes.py::test_masks_of_all_dtypes_mean_the_same[cpu-bf16-train-fused]",
    overrides="scaled_dot_product_attention",
)
def float_masks_refused(call: Overridden) -> Any:
    mask = call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)
    if mask is not None and mask.dtype == torch.float32:
        raise RuntimeError("Expected attn_mask dtype to be bool or to match query dtype, but got float")
    return replace(call).cast(call.low).run()


@defect(
    "The fast path of TransformerEncoderLayer under autocast on a CPU attends to masked tokens",
    caught_by="gradients/test_attention_modes.py::test_encoder[cpu-bf16-eval-no_grad-causal]",
    not_on_cuda="the encoder leaves its fast path under CUDA's autocast",
)
def encoder_fast_path_ignores_its_mask() -> None:
    mask = 18

    def encoder(call: Overridden) -> Any:
        return replace(call, args=call.args[:mask], kwargs={}).run()

    override("_transformer_encoder_layer_fwd", encoder)
