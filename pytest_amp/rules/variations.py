"""Variations of the calls of one sample: the dtype and the device of each floating argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.precision import dtype_name
from pytest_amp.rules.manual_casts import Invocation, dtype_argument
from pytest_amp.rules.samples import Sample

#: Dtypes other than real floating dtypes of at most 32 bits.
_NEVER_CAST = (torch.int64, torch.int32, torch.bool, torch.complex64)


@dataclass(frozen=True)
class Variation:
    """One way to call an operator.

    ``dtypes`` are the dtypes of the floating arguments in order, the last one for all that follow. ``elsewhere`` are
    the indices of floating arguments on another device. ``keywords`` are added. If ``faked``, fake tensors replace real
    ones: kernels of a real device may crash on such arguments. If ``inference``, the call is made in inference mode.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()
    faked: bool = False
    inference: bool = False

    def invocation(self, overload: str, sample: Sample, device: Device) -> Invocation:
        """Return the call of ``overload`` with new tensors; call it in the scope in which they are used."""
        fake = self.faked or device.kind is DeviceKind.FAKE
        index = -1

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal index
            where, dtype = device.torch_device, tensor.dtype
            if tensor.is_floating_point():
                index += 1
                dtype = self.dtypes[min(index, len(self.dtypes) - 1)]
                where = _elsewhere(device) if index in self.elsewhere else where
            if fake:
                return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=where)
            return tensor.to(device=where, dtype=dtype, copy=True)

        keywords = {**sample.keywords, **self.keywords}
        return Invocation(overload, sample.arguments, keywords).mapped(placed)


def _elsewhere(device: Device) -> torch.device:
    return torch.device("cuda" if device.type == "cpu" else "cpu")


def foreign_half(dtype: torch.dtype) -> torch.dtype:
    """Return the other of the two 16-bit dtypes."""
    return torch.float16 if dtype == torch.bfloat16 else torch.bfloat16


def call_of(sample: Sample) -> Invocation:
    """Return a sample as a call without an operator: its tensors can be listed and changed."""
    return Invocation("", sample.arguments, sample.keywords)


def _count(sample: Sample) -> int:
    return len(call_of(sample).floats())


#: A function that makes the variations of a check: (overload, sample, autocast dtype) -> variations.
Vary = Callable[[str, Sample, torch.dtype], Iterable[Variation]]


def ordinary(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield all in float32, all in the autocast dtype, and the first argument in another dtype than the rest."""
    yield Variation("float32", (torch.float32,))
    yield Variation(dtype_name(low), (low,))
    if _count(sample) > 1:
        yield Variation(f"{dtype_name(low)}, then float32", (low, torch.float32))
        yield Variation(f"float32, then {dtype_name(low)}", (torch.float32, low))


def explicit_dtype(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield explicit dtypes, wider and narrower than autocast's choice; nothing without a dtype argument."""
    argument = dtype_argument(overload)
    if argument is not None:
        for input_dtype, dtype in (
            (torch.float32, torch.float64),
            (low, torch.float64),
            (torch.float32, low),
            (low, low),
        ):
            yield Variation(
                f"{dtype_name(input_dtype)}, {argument}={dtype_name(dtype)}", (input_dtype,), {argument: dtype}
            )


def orders(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield each argument as the only one in the autocast dtype, and as the only one in float32."""
    count = _count(sample)
    for only, rest in ((low, torch.float32), (torch.float32, low)):
        # With two arguments, the second loop would repeat the variations of the first.
        for index in range(count if count > 2 or (count == 2 and only == low) else 0):
            dtypes = tuple(only if position == index else rest for position in range(count))
            yield Variation(f"only argument {index} {dtype_name(only)}", dtypes)


def unsuitable(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield dtypes that autocast never casts: float64 alone and next to cast dtypes, integers, bool and complex."""
    yield Variation("float64", (torch.float64,))
    if _count(sample) > 1:
        yield Variation("float32, then float64", (torch.float32, torch.float64))
        yield Variation(f"{dtype_name(low)}, then float64", (low, torch.float64), faked=True)
        yield Variation(f"float64, then {dtype_name(low)}", (torch.float64, low), faked=True)
    for dtype in _NEVER_CAST:
        yield Variation(dtype_name(dtype), (dtype,), faked=True)


def elsewhere(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield float32 with the first argument on another device, and the autocast dtype with the last one there."""
    for dtype, index, which in ((torch.float32, 0, "first"), (low, _count(sample) - 1, "last")):
        name = f"{dtype_name(dtype)}, the {which} on another device"
        yield Variation(name, (dtype,), elsewhere=frozenset({index}), faked=True)


def other_half(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield the 16-bit dtype other than the autocast dtype: alone, and with the autocast dtype in both orders."""
    other = foreign_half(low)
    yield Variation(dtype_name(other), (other,))
    if _count(sample) > 1:
        yield Variation(f"{dtype_name(other)}, then {dtype_name(low)}", (other, low))
        yield Variation(f"{dtype_name(low)}, then {dtype_name(other)}", (low, other))


def half_weights(overload: str, sample: Sample, low: torch.dtype) -> Iterable[Variation]:  # noqa: ARG001 - a Vary
    """Yield the first argument and the last two in float32, and a recurrent layer's weights between them in float16."""
    between = _count(sample) - 3
    yield Variation("float32, its weights float16", (torch.float32, *[torch.float16] * between, torch.float32))


def each_variation(
    overload: str, samples: list[Sample], low: torch.dtype, *vary: Vary
) -> Iterator[tuple[Sample, Variation]]:
    """Yield each variation of each sample."""
    for sample in samples:
        for function in vary:
            for variation in function(overload, sample, low):
                yield sample, variation
