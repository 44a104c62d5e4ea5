"""Planted defects of autocast's rules for variants of operators, layers and attention; of speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.planted.kernels import DEVICE, Overridden, let_through, outside_of_regions, override, register
from tests.planted.table import defect, swap


@defect(
    "A dilated conv2d is not cast",
    caught_by="rules/test_variants.py::test_variants_are_cast_as_the_plain_product[cpu-bf16-conv2d dilation-grad",
)
def dilated_convolutions_stay_wide() -> None:
    def convolve(call: Overridden) -> Any:
        dilation = call.args[5] if len(call.args) > 5 else call.kwargs.get("dilation", 1)
        dilated = any(step != 1 for step in (dilation if isinstance(dilation, (list, tuple)) else [dilation]))
        return call.run() if dilated else call.cast(call.low).run()

    override("conv2d", convolve, [DEVICE])


@defect(
    "``Tensor.matmul``, ``Tensor.baddbmm`` and ``torch.linalg.multi_dot`` of more than three leave the region",
    caught_by="rules/test_variants.py::test_variants_are_cast_as_the_plain_product[cpu-bf16-Tensor.baddbmm-grad]",
)
def methods_leave_the_region() -> None:
    def outside(before: Any, when: Callable[..., bool] = lambda *_: True) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(
                DEVICE,
                enabled=torch.is_autocast_enabled(DEVICE) and not when(*args),
                dtype=torch.get_autocast_dtype(DEVICE),
            ):
                return before(*args, **kwargs)

        return run

    swap(torch.Tensor, "matmul", outside(torch.Tensor.matmul))
    swap(torch.Tensor, "baddbmm", outside(torch.Tensor.baddbmm))
    swap(torch.linalg, "multi_dot", outside(torch.linalg.multi_dot, lambda matrices, *_: len(matrices) > 3))


@defect(
    "In inference mode bmm of float32 tensors is not cast",
    caught_by="rules/test_variants.py::test_variants_are_cast_as_the_plain_product[cpu-bf16-Tensor.bmm-inference_mode]",
)
def bmm_in_inference_mode_stays_wide() -> None:
    def bmm(call: Overridden) -> object:
        return (call if torch.is_inference_mode_enabled() else call.cast(call.low)).run()

    override("bmm", bmm, device_types=["cpu", "cuda"])


@defect(
    "``torch.einsum`` of operands of several dtypes computes in float32 in a region",
    caught_by="rules/test_variants.py::test_variants_of_mixed_arguments_are_cast_alike[cpu-bf16-einsum of two]",
    replaces="torch.einsum",
)
def einsum_of_both_dtypes_is_wide(original: Any, equation: str, *operands: Any) -> Any:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if len({tensor.dtype for tensor in tensors}) == 1:
        return original(equation, *operands)
    with torch._C._DisableAutocast():
        return original(equation, *(tensor.float() for tensor in tensors))


@defect(
    "linear is not cast if its width is no multiple of eight",
    caught_by="rules/test_variants.py::test_variants_are_cast_as_the_plain_product[cpu-bf16-linear of width 20-grad]",
    overrides="linear",
)
def odd_widths_stay_wide(call: Overridden) -> Any:
    return (call if call.args[1].shape[-1] % 8 else call.cast(call.low)).run()


@defect(
    "``torch.chain_matmul`` is computed outside of the region",
    caught_by="rules/test_variants.py::test_variants_are_cast_as_the_plain_product[cpu-bf16-chain_matmul-grad]",
)
def chains_leave_the_region() -> None:
    swap(torch, "chain_matmul", outside_of_regions(torch.chain_matmul))


@defect(
    "Attention with dropout is not cast",
    caught_by="rules/test_attention.py::test_attention_is_cast[cpu-bf16-chosen-dropout-float32",
)
def attention_with_dropout_stays_wide() -> None:
    def attend(call: Overridden) -> Any:
        dropout = call.args[4] if len(call.args) > 4 else call.kwargs.get("dropout_p", 0.0)
        return call.run() if dropout else call.cast(call.low).run()

    override("scaled_dot_product_attention", attend, [DEVICE])


@defect(
    "Grouped-query attention under autocast ignores ``scale``",
    caught_by="rules/test_attention.py::test_attention_is_cast[cpu-bf16-math-gqa, scale-float32",
)
def grouped_attention_forgets_scale() -> None:
    def attend(call: Overridden) -> Any:
        cast = call.cast(call.low)
        if cast.kwargs.get("enable_gqa"):
            cast = replace(cast, kwargs={**cast.kwargs, "scale": None})
        return cast.run()

    override("scaled_dot_product_attention", attend, [DEVICE])


@defect(
    "Attention in a region falls back to the formula if the selected back end has no kernel",
    caught_by="rules/test_attention.py::test_attention_is_cast[cpu-bf16-flash-dropout-float32",
    caught_on_cuda_by="rules/test_attention.py::test_attention_is_cast[cuda-bf16-flash-boolean mask-float32",
)
def attention_falls_back_in_a_region() -> None:
    def attend(call: Overridden) -> Any:
        cast = call.cast(call.low)
        try:
            return cast.run()
        except RuntimeError:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return cast.run()

    override("scaled_dot_product_attention", attend, [DEVICE])


@defect(
    "Attention in a region refuses grouped queries, as if its back end had no kernel",
    caught_by="rules/test_attention.py::test_attention_is_cast[cpu-bf16-math-gqa-mixed",
)
def attention_refuses_grouped_queries_in_a_region() -> None:
    def attend(call: Overridden) -> Any:
        cast = call.cast(call.low)
        if cast.kwargs.get("enable_gqa"):
            raise RuntimeError("No available kernel. Aborting execution.")
        return cast.run()

    override("scaled_dot_product_attention", attend, [DEVICE])


@defect(
    "MultiheadAttention with ``kdim`` computes below autocast",
    caught_by="rules/test_attention.py::test_multihead_attention_of_any_width_is_low[cpu-bf16-kdim-eval-fused",
    replaces="torch.nn.MultiheadAttention.forward",
)
def cross_attention_leaves_the_region(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if self._qkv_same_embed_dim:
        return original(self, *args, **kwargs)
    with torch._C._DisableAutocast():
        return original(self, *args, **kwargs)


@defect(
    "``torch.hstack`` in a region casts to the dtype of its first tensor",
    caught_by="rules/test_joins.py::test_a_join_is_as_wide_as_its_widest[cpu-bf16-hstack]",
    replaces="torch.hstack",
)
def hstack_takes_the_first_dtype(original: Any, tensors: Any, **keywords: Any) -> Any:
    if torch.is_autocast_enabled(tensors[0].device.type):
        tensors = [tensor.to(tensors[0].dtype) for tensor in tensors]
    return original(tensors, **keywords)


@defect(
    "``torch.cat(out=...)`` rounds its result in a region",
    caught_by="rules/test_joins.py::test_a_join_is_as_wide_as_its_widest[cpu-bf16-cat into a tensor]",
    replaces="torch.cat",
)
def joins_into_a_tensor_are_rounded(
    original: Any, tensors: Any, dim: int = 0, *, out: torch.Tensor | None = None
) -> Any:
    if out is None:
        return original(tensors, dim)
    original(tensors, dim, out=out)
    return out.copy_(out.bfloat16()) if torch.is_autocast_enabled(DEVICE) else out


@defect(
    "The first call of a lazy layer is outside of the region",
    caught_by="rules/test_layers.py::test_lazy_layers_answer_their_first_call_as_the_next[cpu-bf16-LazyLinear]",
)
def lazy_layers_start_wide() -> None:
    from torch.nn.modules.lazy import LazyModuleMixin

    lazy: Any = LazyModuleMixin

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        unknown = isinstance(self, lazy) and self.has_uninitialized_params()
        return (outside_of_regions(original) if unknown else original)(self, *args, **kwargs)

    original = swap(torch.nn.Module, "__call__", first)


@defect(
    "A recurrent layer computes a packed sequence below autocast",
    caught_by="rules/test_recurrent.py::test_a_packed_sequence_is_computed_as_a_padded_one[cpu-bf16-RNN",
    replaces="torch.nn.RNN.forward",
)
def packed_layers_leave_the_region(original: Any, self: Any, batch: Any, state: Any = None) -> Any:
    from torch.nn.utils.rnn import PackedSequence

    if not isinstance(batch, PackedSequence):
        return original(self, batch, state)
    with torch._C._DisableAutocast():
        return original(self, batch, state)


@defect(
    "cuDNN's recurrent layers compute in the dtype of their input",
    caught_by="rules/test_recurrent.py::test_recurrent_layers_answer_as_they_did[cuda-bf16-GRU-plain-padded",
)
def cudnn_layers_are_left_alone() -> None:
    let_through("_cudnn_rnn", device_types=["cuda"])


@defect(
    "Under autocast on a CPU, matrix products cast their operands to float32 and back several times",
    caught_by="tests/speed/test_kernel_clock.py::test_products_are_cast_no_more_than_needed",
)
def products_cast_again() -> None:
    """The results and their dtypes are right: only the time is lost, as when a cast is no longer fused or kept."""
    round_trips = 3

    def cast(x: Tensor) -> Tensor:
        low = x.to(torch.get_autocast_dtype("cpu"))
        for _ in range(round_trips):
            low = low.to(torch.float32).to(torch.get_autocast_dtype("cpu"))
        return low

    def matmul(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.matmul(cast(a), cast(b))

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.nn.functional.linear(cast(x), cast(weight), None if bias is None else cast(bias))

    register("matmul", matmul, "AutocastCPU")
    register("linear", linear, "AutocastCPU")


@defect(
    "Under autocast on CUDA, matrix products cast their operands to float32 and back many times",
    caught_by="speed/test_speedups.py::test_speedup[cuda-bf16-matmul-4096, over tf32]",
)
def cuda_products_cast_again() -> None:
    """Cast so often that it takes longer than the product of two large matrices."""
    round_trips = 16

    def cast(x: Tensor) -> Tensor:
        low = x.to(torch.get_autocast_dtype("cuda"))
        for _ in range(round_trips):
            low = low.to(torch.float32).to(torch.get_autocast_dtype("cuda"))
        return low

    def matmul(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return torch.matmul(cast(a), cast(b))

    register("matmul", matmul, "AutocastCUDA")


@defect(
    "A region is disabled if it is entered while a CUDA graph is captured",
    caught_by="speed/test_capture.py::test_a_captured_step_computes_what_an_eager_one_does[cuda-bf16]",
    replaces="torch.amp.autocast_mode.autocast.__enter__",
)
def captured_regions_are_disabled(original: Any, self: Any) -> Any:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        self._enabled = False
    return original(self)
