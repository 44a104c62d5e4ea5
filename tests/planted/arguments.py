"""Planted defects of operators and layers with unusual arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.planted.changes import rounded, with_gradient
from tests.planted.kernels import DEVICE, LOW_DTYPES, Overridden, override, replace_kernel
from tests.planted.table import defect, swap


@defect(
    "Under autocast an embedding with a low-precision weight ignores ``padding_idx``",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-embedding of low weights, padding]",
    overrides="embedding",
)
def padding_rows_of_low_embeddings_get_gradients(call: Overridden) -> Any:
    weight, indices, *options = call.args
    if weight.dtype in {torch.bfloat16, torch.float16} and options:
        options[0] = -1
    return replace(call, args=(weight, indices, *options)).run()


@defect(
    "Under autocast the gradient of an expanded low-precision row is that of the first copy alone",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-expand of a row]",
)
def expanded_rows_go_back_once() -> None:
    def first(gradient: torch.Tensor) -> torch.Tensor:
        return torch.cat([gradient[:1], torch.zeros_like(gradient[1:])])

    def expand(call: Overridden) -> Any:
        (row, *_), result = call.args, call.run()
        low = row.dtype in {torch.bfloat16, torch.float16}
        return with_gradient(result, first) if low and row.dim() == 2 and row.shape[0] == 1 else result

    override("expand", expand)


@defect(
    "The CPU's accumulating index_put of 16-bit tensors keeps only the last value of each index",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-index_put, accumulating]",
)
def index_put_loses_duplicates() -> None:
    def index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, *accumulating: bool) -> Tensor:
        places: Any = indices
        result = x.clone()
        if any(accumulating) and x.dtype in LOW_DTYPES:
            values = torch.ops.aten.index(x, places) + values
            accumulating = ()
        return torch.ops.aten.index_put_(result, places, values, *accumulating)  # type: ignore[no-any-return]

    replace_kernel("index_put", index_put)


@defect(
    "The CPU's softmax of 16-bit images over their channels has two bits of precision",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-softmax of channels]",
    not_on_cuda="its autocast makes it float32: no 16-bit image reaches the kernel",
)
def channels_softmax_rounded() -> None:
    def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        shares = (wide - wide.amax(dim, keepdim=True)).exp()
        shares = shares / shares.sum(dim, keepdim=True)
        if x.dtype in LOW_DTYPES and x.dim() == 4 and dim % 4 == 1:
            shares = shares.to(torch.float8_e5m2).float()
        return shares if half_to_float else shares.to(x.dtype)

    replace_kernel("_softmax", softmax)


@defect(
    "scaled_dot_product_attention under autocast detaches its mask from the graph",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-attention, a mask for each head]",
)
def masks_get_no_gradient() -> None:
    def attention(call: Overridden) -> object:
        cast = call.cast(call.low)
        arguments = list(cast.args)
        if len(arguments) > 3 and isinstance(arguments[3], torch.Tensor):
            arguments[3] = arguments[3].detach()
        return replace(cast, args=tuple(arguments)).run()

    override("scaled_dot_product_attention", attention, device_types=[DEVICE])


@defect(
    "``addmm`` under autocast ignores ``alpha`` if ``beta`` is given, too",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-addmm, alpha and beta]",
    overrides="addmm",
)
def addmm_forgets_alpha(call: Overridden) -> object:
    if "beta" in call.kwargs:
        call = replace(call, kwargs={"beta": call.kwargs["beta"]})
    return call.cast(call.low).run()


@defect(
    '``gaussian_nll_loss`` with ``reduction="none"`` ignores ``full`` in a region',
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-gaussian, full, none]",
    replaces="torch.nn.functional.gaussian_nll_loss",
)
def gaussian_loss_forgets_its_constant(original: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("reduction") == "none" and torch.is_autocast_enabled(DEVICE):
        kwargs["full"] = False
    return original(*args, **kwargs)


@defect(
    "``functional.pad`` ignores negative widths in a region",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-pad by less than nothing]",
    replaces="torch.nn.functional.pad",
)
def pads_never_crop(original: Any, x: Tensor, pad: Any, *args: Any, **kwargs: Any) -> Any:
    widths = [max(width, 0) for width in pad] if torch.is_autocast_enabled(DEVICE) else pad
    return original(x, widths, *args, **kwargs)


@defect(
    "The values of grouped-query attention get half their gradient",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-attention, grouped]",
    overrides="scaled_dot_product_attention",
)
def grouped_values_lose_half_their_gradient(call: Overridden) -> object:
    call = call.cast(call.low)
    query, key, value, *rest = call.args
    if call.kwargs.get("enable_gqa") and value.requires_grad:
        constant = value.detach()
        value = constant + (value - constant) / 2  # the same numbers
    return replace(call, args=(query, key, value, *rest)).run()


@defect(
    "``functional.log_softmax(dtype=torch.float32)`` of a low-precision tensor is rounded to its dtype",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-functional.log_softmax in float32]",
    not_on_cuda="its autocast makes it float32, with the argument or without",
    replaces="torch.nn.functional.log_softmax",
)
def log_softmax_into_float32_is_rounded(
    original: Any, x: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Any:
    if dtype is torch.float32 and x.dtype in LOW_DTYPES:
        return original(x, dim).float()
    return original(x, dim, dtype=dtype)


@defect(
    "The gradient of a value that is written into a slice is rounded to bfloat16",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-a slice is written]",
    replaces="torch.Tensor.__setitem__",
)
def written_slices_get_rounded_gradients(original: Any, self: Any, index: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor) and value.requires_grad and value.dtype is torch.float32:
        value = with_gradient(value, lambda gradient: rounded(gradient, torch.bfloat16))
    original(self, index, value)


@defect(
    "The unused parts of ``split`` get the mean of the gradient, not zero",
    caught_by="kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-a part of a split]",
)
def parts_that_are_not_used_get_gradients() -> None:
    def filled(gradient: torch.Tensor) -> torch.Tensor:
        return torch.where(gradient == 0, gradient.abs().mean(), gradient)

    def split(self: Any, sizes: Any, dim: int = 0) -> Any:
        low = self.requires_grad and self.dtype in {torch.bfloat16, torch.float16}
        return original(with_gradient(self, filled) if low else self, sizes, dim)

    original = swap(torch.Tensor, "split", split)


@defect(
    "The second direction of a GRU under autocast returns its steps in the order of the first",
    caught_by="gradients/test_layer_arguments.py::test_layer_with_arguments[cpu-bf16-GRU, both ways]",
    replaces="torch.nn.GRU.forward",
)
def other_direction_reads_forward(original: Any, self: Any, x: Any, *arguments: Any) -> Any:
    result, state = original(self, x, *arguments)
    if self.bidirectional and isinstance(result, torch.Tensor) and torch.is_autocast_enabled(result.device.type):
        forward, backward = result.chunk(2, -1)
        result = torch.cat([forward, backward.flip(1 if self.batch_first else 0)], -1)
    return result, state


@defect(
    "The backward pass of a bidirectional nn.RNN drops a step if its rows and units fill whole tiles",
    caught_by="gradients/test_layer_arguments.py::test_layer_with_arguments[cpu-bf16-RNN, both ways, of whole tiles]",
    not_on_cuda="cuDNN itself has this fault, for the same sizes: an expected failure",
)
def other_direction_forgets_a_step() -> None:
    def without_the_first(gradient: torch.Tensor) -> torch.Tensor:
        """Take (steps, rows, 2 * units): the second direction begins with the last step."""
        units = gradient.shape[-1] // 2
        changed = gradient.clone()
        changed[-1, :, units:] = 0
        return changed

    def forget(self: Any, x: Any, *arguments: Any) -> Any:
        result, state = original(self, x, *arguments)
        tiles = isinstance(result, torch.Tensor) and result.shape[1] % 8 == 0 and self.hidden_size % 32 == 0
        if self.bidirectional and tiles and result.requires_grad and torch.is_autocast_enabled(result.device.type):
            result.register_hook(without_the_first)
        return result, state

    original = swap(torch.nn.RNN, "forward", forget)


@defect(
    "MultiheadAttention under autocast attends to padding if its weights are requested",
    caught_by="gradients/test_layer_arguments.py::test_layer_with_arguments[cpu-bf16-attention, padded, weights]",
    replaces="torch.nn.functional.multi_head_attention_forward",
)
def weights_keep_the_padding(
    original: Any, query: torch.Tensor, *arguments: Any, key_padding_mask: Any = None, **keywords: Any
) -> Any:
    if keywords.get("need_weights") and torch.is_autocast_enabled(query.device.type):
        key_padding_mask = None
    return original(query, *arguments, key_padding_mask=key_padding_mask, **keywords)


@defect(
    "In a region the states of a packed sequence stay sorted by length, not in the order of their rows",
    caught_by="gradients/test_layer_arguments.py::test_layer_with_arguments[cpu-bf16-GRU, packed in any order]",
)
def packed_states_stay_sorted() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):

        def permuted(self: Any, states: Any, order: Any, permute: Any = kind.permute_hidden) -> Any:
            return states if torch.is_autocast_enabled(DEVICE) else permute(self, states, order)

        swap(kind, "permute_hidden", permuted)


@defect(
    "linear under autocast detaches its bias from the graph",
    caught_by="gradients/test_layers.py::test_layer[cpu-bf16-Linear]",
    overrides="linear",
)
def linear_bias_gets_no_gradient(call: Overridden) -> Any:
    x, weight, *bias = call.args
    return replace(call, args=(x, weight, *(b if b is None else b.detach() for b in bias))).cast(call.low).run()


@defect(
    "linear under autocast sets ``requires_grad`` of a frozen weight",
    caught_by="gradients/test_layers.py::test_frozen_parameters_stay_without[cpu-bf16]",
    overrides="linear",
)
def frozen_weights_are_trained(call: Overridden) -> Any:
    if call.args[1].is_leaf:
        call.args[1].requires_grad_(True)
    return call.cast(call.low).run()


@defect(
    "linear under autocast casts a frozen weight through the other 16-bit dtype",
    caught_by="gradients/test_layers.py::test_freezing_a_layer_leaves_the_others_alone[cpu-fp16]",
    overrides="linear",
)
def frozen_weights_rounded_twice(call: Overridden) -> Any:
    x, weight, *bias = call.args
    if not weight.requires_grad:
        weight = weight.to(torch.float16).to(torch.bfloat16)
    return replace(call, args=(x, weight, *bias)).cast(call.low).run()


@defect(
    "conv_transpose3d under autocast detaches its bias from the graph",
    caught_by="gradients/test_layers.py::test_layer[cpu-bf16-ConvTranspose3d]",
    overrides="conv_transpose3d.input",
)
def bias_of_volumes_gets_no_gradient(call: Overridden) -> object:
    x, weight, bias, *rest = call.args
    return replace(call, args=(x, weight, bias.detach(), *rest)).cast(call.low).run()


@defect(
    "The gradients of linear's weights are missing, not zero, for an empty batch",
    caught_by="gradients/test_layers.py::test_an_empty_batch_gives_gradients_of_zeros[cpu-bf16-Linear]",
    replaces="torch.nn.functional.linear",
)
def empty_batches_leave_weights_alone(original: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    if x.numel():
        return original(x, weight, bias)
    return original(x.requires_grad_(), weight.detach(), None if bias is None else bias.detach())
