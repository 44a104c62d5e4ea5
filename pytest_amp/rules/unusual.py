"""Calls that differ from an operator's sample in one thing that no rule asks about: layout, size, mode, an option.

A kernel that asks about it before it casts is right for every sample and wrong for one of these. They are made on
fake tensors and compared in casts, dtypes and shapes: no kernel runs, and a size costs nothing. What an operator
refuses, it refuses under autocast and by hand alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.precision import dtype_name
from pytest_amp.rules.samples import Sample
from pytest_amp.rules.spec import RuleName
from pytest_amp.rules.variations import Variation, call_of

#: How much longer the first dimension is where a sample is made large: beyond 2^20 elements.
_LARGE = 2**20
#: By the type that a schema gives an optional argument: another value than its default.
_OTHER: dict[str, Callable[[Any], Any]] = {
    "bool": lambda default: not default,
    "float": lambda default: default + 0.5,
    "number": lambda default: default + 0.5,
    "Optional[float]": lambda _: 0.5,
}
#: By the name of an option that is a word, another one.
_WORDS = {"norm": "ortho", "interpolation": "nearest"}
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def unusual(
    overload: str, made: Sequence[Sample], rule: RuleName, low: torch.dtype
) -> Iterator[tuple[Sample, Variation]]:
    """Each unusual call of a qualified overload, and the dtypes in which ``rule`` shows; ``made`` are its samples."""
    sample = made[0]
    dtypes = _telling(rule, sample, low)
    text = ", then ".join(map(dtype_name, dtypes))
    for what, changed in (*_changed(overload, sample), *_channels_last(made)):
        yield changed, Variation(f"{text}, {what}", dtypes, faked=True)
    yield sample, Variation(f"{text}, in inference mode", dtypes, faked=True, inference=True)


def _telling(rule: RuleName, sample: Sample, low: torch.dtype) -> tuple[torch.dtype, ...]:
    if rule is RuleName.LOWER_PRECISION_FP:
        return (torch.float32,)
    if rule is RuleName.PROMOTE and len(call_of(sample).floats()) > 1:
        return (low, torch.float32)
    return (low,)


def _changed(overload: str, sample: Sample) -> Iterator[tuple[str, Sample]]:
    yield "transposed", _mapped(sample, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x)
    yield "strided", _mapped(sample, lambda x: torch.stack([x, x], -1)[..., 0])
    yield "scalars", _mapped(sample, lambda x: x.new_empty(()))
    first = _length(sample)
    if first is not None:
        yield "empty", _mapped(sample, lambda x: _resized(x, first, 0))
        yield "large", _mapped(sample, lambda x: _resized(x, first, first * _LARGE))
    yield from _with_other_options(overload, sample)


def _length(sample: Sample) -> int | None:
    """The first dimension of the first tensor that has one."""
    tensors = call_of(sample).tensors()
    return next((x.shape[0] for x in tensors if x.dim() > 0), None)


def _mapped(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    call = call_of(sample).mapped(change)
    return replace(sample, arguments=call.arguments, keywords=call.keywords)


def _channels_last(made: Sequence[Sample]) -> Iterator[tuple[str, Sample]]:
    """The first that has images or volumes."""

    def change(x: torch.Tensor) -> torch.Tensor:
        memory_format = _MEMORY_FORMATS.get(x.dim())
        return x if memory_format is None else x.contiguous(memory_format=memory_format)

    for sample in made:
        if any(x.dim() in _MEMORY_FORMATS for x in call_of(sample).floats()):
            yield "channels last", _mapped(sample, change)
            return


def _resized(x: torch.Tensor, length: int, wanted: int) -> torch.Tensor:
    """A tensor on the meta device: it has a size, and no elements."""
    if x.dim() == 0 or x.shape[0] != length:
        return x
    return torch.empty(wanted, *x.shape[1:], dtype=x.dtype, device="meta")


def _with_other_options(overload: str, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Dimensions counted from the end, and each option in turn with another value than its default."""
    function = torch_private.find_overload(overload)
    defaults = torch_private.defaults_of(function)
    for index, (name, kind) in enumerate(torch_private.arguments_of(function).items()):
        if name == "dim" and index < len(sample.arguments):
            counted = _from_the_end(sample.arguments[index], sample)
            if counted != sample.arguments[index]:
                yield "a negative dim", _given(sample, index, name, counted)
        elif name == "reduction":
            for reduction in (0, 2):
                yield f"reduction={reduction}", _given(sample, index, name, reduction)
        elif name in _WORDS:
            yield f"{name}={_WORDS[name]}", _given(sample, index, name, _WORDS[name])
        elif name in defaults and kind in _OTHER:
            value = _OTHER[kind](defaults[name])
            yield f"{name}={value}", _given(sample, index, name, value)


def _from_the_end(dim: Any, sample: Sample) -> Any:
    if isinstance(dim, (list, tuple)):
        return [_from_the_end(each, sample) for each in dim]
    tensors = call_of(sample).tensors()
    return dim - tensors[0].dim() if isinstance(dim, int) and tensors and dim >= 0 else dim


def _given(sample: Sample, index: int, name: str, value: Any) -> Sample:
    if index < len(sample.arguments):
        return replace(sample, arguments=(*sample.arguments[:index], value, *sample.arguments[index + 1 :]))
    return replace(sample, keywords={**sample.keywords, name: value})
