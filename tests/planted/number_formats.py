"""Planted defects of number formats: rounding, promotion, float8, quantisation, Python's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.planted.kernels import LOW_DTYPES, Overridden, replace_kernel, truncate_conversions
from tests.planted.table import defect, swap


@defect(
    "Conversions from float32 to bf16 truncate",
    caught_by="kernels/test_rounding.py::test_ties_and_their_neighbours[cpu-bf16-bf16-to]",
)
def conversions_truncate() -> None:
    truncate_conversions()


@defect(
    "Conversions from float32 to bf16 truncate tensors of more than a hundred thousand elements",
    caught_by="kernels/test_rounding.py::test_ties_and_their_neighbours[cpu-bf16-bf16-at the end]",
)
def large_conversions_truncate() -> None:
    truncate_conversions(lambda x: x.numel() > 100_000)


def _truncated(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    return (bits & -(2**16)).view(torch.float32).to(torch.bfloat16)


@defect(
    "Autocast truncates the arguments of a matrix product to bf16",
    caught_by="formats/test_casts.py::test_autocasts_own_casts_round_so[cpu-bf16-bf16]",
    overrides="mm",
)
def casts_of_products_truncate(call: Overridden) -> Any:
    args = tuple(
        _truncated(x) if isinstance(x, Tensor) and x.dtype is torch.float32 and call.low is torch.bfloat16 else x
        for x in call.args
    )
    return replace(call, args=args).cast(call.low).run()


@defect(
    "``Tensor.bfloat16`` and ``Tensor.type`` truncate float32; ``to`` rounds it",
    caught_by="kernels/test_rounding.py::test_ties_and_their_neighbours[cpu-bf16-bf16-by its name]",
)
def named_conversions_truncate() -> None:
    def bfloat16(self: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return _truncated(self) if self.dtype is torch.float32 else self.to(torch.bfloat16, **kwargs)

    def typed(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is torch.bfloat16 and self.dtype is torch.float32:
            return _truncated(self)
        return original(self, *(() if dtype is None else (dtype,)), *args, **kwargs)

    swap(torch.Tensor, "bfloat16", bfloat16)
    original = swap(torch.Tensor, "type", typed)


@defect(
    "Conversions to fp16 saturate at 65504: no overflow is ever seen",
    caught_by="formats/test_thresholds.py::test_what_is_too_large[cpu-fp16-fp16-to]",
    replaces="torch.Tensor.to",
)
def fp16_saturates(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    to_half = torch.float16 in args or kwargs.get("dtype") is torch.float16
    clamped = self.clamp(-65504, 65504) if to_half and self.is_floating_point() else self
    return original(clamped, *args, **kwargs)  # type: ignore[no-any-return]


@defect(
    "An overflow of E4M3 is NaN where this torch saturates, and 448 where it does not",
    caught_by="formats/test_thresholds.py::test_what_is_too_large[cpu-bf16-float8_e4m3fn-to]",
)
def e4m3_overflows_the_other_way() -> None:
    before: Any = torch.Tensor.to
    saturates = bool(before(torch.tensor(1e4), torch.float8_e4m3fn).float() == 448)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.float8_e4m3fn in args and self.dtype is torch.float32:
            self = self.masked_fill(self.abs() > 464, torch.nan) if saturates else self.clamp(-448, 448)
        return before(self, *args, **kwargs)  # type: ignore[no-any-return]

    swap(torch.Tensor, "to", to)


@defect(
    "``torch.promote_types`` of bfloat16 and float16 is bfloat16, which loses three bits",
    caught_by="formats/test_promotion.py::test_two_dtypes_make_the_one_that_holds_both[cpu-bf16-promote_types-float16]",
)
def low_dtypes_promote_to_bf16() -> None:
    low = {torch.bfloat16, torch.float16}

    def to_bf16(first: torch.dtype, second: torch.dtype) -> Any:
        return torch.bfloat16 if {first, second} == low else original(first, second)

    original = swap(torch, "promote_types", to_bf16)


@defect(
    "cat and stack of bfloat16 and float16 give float16, in which large bfloat16 values are infinite",
    caught_by="formats/test_promotion.py::test_two_dtypes_make_the_one_that_holds_both[cpu-bf16-cat-float16]",
)
def joined_low_tensors_are_fp16() -> None:
    low = {torch.bfloat16, torch.float16}

    def narrowed(join: Any) -> Any:
        def joined(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            result = join(tensors, *args, **kwargs)
            return result.half() if {tensor.dtype for tensor in tensors} == low else result

        return joined

    swap(torch, "cat", narrowed(torch.cat))
    swap(torch, "stack", narrowed(torch.stack))


@defect(
    "``tolist`` of bfloat16 tensors converts them to float16 first, which has less range",
    caught_by="kernels/test_python_numbers.py::test_numbers_are_read_back_as_they_are[cpu-bf16]",
    replaces="torch.Tensor.tolist",
)
def lists_of_low_numbers_go_by_way_of_fp16(original: Any, self: Any) -> Any:
    return original(self.half() if self.dtype is torch.bfloat16 else self)


@defect(
    "A Python scalar that multiplies or divides a low-precision tensor is rounded to its dtype first",
    caught_by="kernels/test_python_numbers.py::test_a_number_beside_low_ones_keeps_its_bits[cpu-bf16-times]",
)
def numbers_beside_low_tensors_are_rounded() -> None:
    def rounding(before: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if self.dtype in LOW_DTYPES and isinstance(other, float):
                other = torch.tensor(other, dtype=self.dtype).item()
            return before(self, other, *args, **kwargs)

        return call

    for name in ("__mul__", "__rmul__", "__truediv__", "mul_", "div_"):
        swap(torch.Tensor, name, rounding(getattr(torch.Tensor, name)))


@defect(
    "``fill_`` of a bfloat16 tensor truncates its value",
    caught_by="kernels/test_python_numbers.py::test_a_number_becomes_the_nearest_element[cpu-bf16-fill_]",
    replaces="torch.Tensor.fill_",
)
def low_fills_truncate(original: Any, self: Any, value: Any) -> Any:
    if self.dtype is torch.bfloat16 and isinstance(value, float):
        bits = torch.tensor([value]).view(torch.int32) & -0x10000
        value = bits.view(torch.float32).item()
    return original(self, value)


@defect(
    "Conversions from low-precision dtypes to integers round to the nearest",
    caught_by="kernels/test_python_numbers.py::test_low_numbers_become_others[cpu-bf16-int32]",
    replaces="torch.Tensor.to",
)
def low_numbers_become_the_nearest_integers(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.dtype in LOW_DTYPES and args and args[0] in {torch.int32, torch.int64}:
        self = self.round()
    return original(self, *args, **kwargs)


@defect(
    "TF32 is switched on",
    caught_by="formats/test_float32_products.py::test_the_defaults[cpu-fp32]",
)
def tf32_left_on() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


@defect(
    "float32 products round their inputs to ten bits of mantissa, as TF32 does, whatever the flags say",
    caught_by="formats/test_float32_products.py::test_a_cpu_product_sees_every_bit[cpu-fp32]",
    caught_on_cuda_by="formats/test_float32_products.py::test_the_defaults[cuda-fp32]",
    replaces="torch.Tensor.__matmul__",
)
def float32_products_in_ten_bits(original: Any, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if self.dtype is torch.float32 and other.dtype is torch.float32:
        self, other = (x.view(torch.int32).add(0x1000).bitwise_and(-0x2000).view(torch.float32) for x in (self, other))
    return original(self, other)  # type: ignore[no-any-return]


@defect(
    "The kernel of bmm accumulates low-precision values in steps of 4, and rounds after each",
    caught_by="kernels/test_accumulation.py::test_many_small_terms_beside_a_large_one[cpu-bf16-bmm]",
)
def batched_products_add_up_low() -> None:
    def bmm(a: Any, b: Any) -> Tensor:
        step = 4 if a.dtype in LOW_DTYPES else max(1, a.shape[2])
        total: Tensor = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
        for left, right in zip(a.split(step, 2), b.split(step, 1), strict=True):
            total = total + torch.stack([x @ y for x, y in zip(left, right, strict=True)])
        return total

    replace_kernel("bmm", bmm)


@defect(
    "``Tensor.float`` flushes subnormal values of E5M2 to zero",
    caught_by="kernels/test_parameters.py::test_every_pattern_has_its_value[cpu-bf16-float8_e5m2]",
    replaces="torch.Tensor.float",
)
def subnormals_of_float8_are_zero(original: Any, self: Tensor, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    if self.dtype is torch.float8_e5m2:
        result[result.abs() < 2.0**-14] = 0
    return result


@defect(
    "``Module.to`` truncates float8 weights",
    caught_by=(
        "kernels/test_float8_weights.py::"
        "test_weights_are_rounded_once[cpu-bf16-float8_e4m3fn-Module.to-float32-outside]"
    ),
)
def float8_weights_truncate() -> None:
    float8 = {torch.float8_e4m3fn: 20, torch.float8_e5m2: 21}

    def truncating(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Convert by way of float32 values without the bits that float8 has no room for."""
        dropped = float8.get(args[0]) if args else None
        for parameter in module.parameters() if dropped else ():
            if parameter.dtype is torch.float32:
                bits: Any = parameter.data.view(torch.int32)
                parameter.data = (bits >> dropped << dropped).view(torch.float32)
        return original(module, *args, **kwargs)

    original = swap(nn.Module, "to", truncating)


@defect(
    "Products of float8 tensors ignore ``scale_a``",
    caught_by=(
        "kernels/test_float8_weights.py::test_scaled_products_are_those_of_their_values[cpu-bf16-float8_e4m3fn-low]"
    ),
    replaces="torch._scaled_mm",
)
def scaled_products_forget_a_scale(original: Any, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    return original(a, b, **{**options, "scale_a": torch.ones_like(options["scale_a"])})  # type: ignore[no-any-return]


@defect(
    "``torch.round`` rounds ties up, so that quantised ties are half a step too large",
    caught_by="kernels/test_quantisation.py::test_the_affine_map_by_hand[cpu-bf16]",
    replaces="torch.round",
)
def quantised_to_the_nearest_above(original: Any, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return original(x, **kwargs) if kwargs or x.dtype is torch.float64 else torch.floor(x + 0.5)


@defect(
    "``torch.quantize_per_channel`` and its fake twin round most values down",
    caught_by="kernels/test_quantisation.py::test_quantised_channels[cpu-bf16-0]",
)
def channels_quantised_towards_below() -> None:
    def lower(quantise: Any) -> Any:
        def called(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, axis: int, *rest: Any) -> Any:
            shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
            return quantise(x - 0.4 * scales.to(x.dtype).view(shape), scales, zeros, axis, *rest)

        return called

    for name in ("quantize_per_channel", "fake_quantize_per_channel_affine"):
        swap(torch, name, lower(getattr(torch, name)))


@defect(
    "``torch.cuda.is_bf16_supported`` is true on a machine without CUDA",
    caught_by="formats/test_support.py::test_cuda_supports_bf16_where_it_says_so[cpu-bf16-asked]",
    not_on_cuda="CUDA does support bf16",
)
def bf16_support_is_claimed() -> None:
    swap(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
