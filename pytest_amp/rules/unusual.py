"""Calls that differ from an operator's sample in layout, size, mode, or one or two options, none of which a rule uses.

A kernel that depends on any of these before it casts is correct for every sample and wrong for one of these calls. They
are made on fake tensors and compared in casts, dtypes and shapes: no kernel runs, and a large size costs nothing. A
call that an operator refuses must be refused both under autocast and with manual casts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.precision import dtype_name
from pytest_amp.rules.samples import Sample
from pytest_amp.rules.spec import RuleName
from pytest_amp.rules.variations import Variation, call_of

#: Factor by which the first dimension of a large sample is longer: beyond 2^20 elements.
_LARGE = 2**20
#: Other values of a non-tensor argument, by its type in the schema.
_OTHER: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "bool": lambda usual: (not usual,),
    "int": lambda usual: (usual + 1,),
    "float": lambda usual: (usual + 0.5, 0.0),
    "number": lambda usual: (usual + 0.5, 0),
    "List[int]": lambda usual: ([item + 1 for item in usual],),
    "Optional[bool]": lambda usual: (not usual,),
    "Optional[int]": lambda _: (2,),
    "Optional[float]": lambda _: (0.5,),
    "Optional[number]": lambda _: (1,),
    "Optional[List[int]]": lambda _: ([1],),
}
#: Other values of a string option, by its name.
_WORDS = {
    "norm": ("ortho", "forward"),
    "interpolation": ("nearest", "midpoint"),
    "padding": ("valid", "same"),
    "UPLO": ("U",),
    "mode": ("complete", "r"),
    "pad_mode": ("constant",),
}
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def unusual(
    overload: str, samples: Sequence[Sample], rule: RuleName, low: torch.dtype
) -> Iterator[tuple[Sample, Variation]]:
    """Yield each unusual call of a qualified overload, in dtypes that ``rule`` casts; ``samples`` are its samples."""
    sample = samples[0]
    telling, silent = _telling(rule, sample, low), _silent(rule, sample, low)
    for what, changed in (
        *_changed(sample),
        *_channels_last(samples),
        *_with_other_options(overload, sample, pairs=True),
    ):
        yield changed, Variation(f"{_listed(telling)}, {what}", telling, faked=True)
    for what, changed in _with_other_options(overload, sample):
        yield changed, Variation(f"{_listed(silent)}, {what}", silent, faked=True)
    yield sample, Variation(f"{_listed(telling)}, in inference mode", telling, faked=True, inference=True)


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", then ".join(map(dtype_name, dtypes))


def _telling(rule: RuleName, sample: Sample, low: torch.dtype) -> tuple[torch.dtype, ...]:
    if rule is RuleName.LOWER_PRECISION_FP:
        return (torch.float32,)
    if rule is RuleName.PROMOTE and len(call_of(sample).floats()) > 1:
        return (low, torch.float32)
    return (low,)


def _silent(rule: RuleName, sample: Sample, low: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return dtypes in which ``rule`` casts nothing, so that any cast is an error."""
    return (torch.float32,) if _telling(rule, sample, low) == (low,) else (low,)


def _changed(sample: Sample) -> Iterator[tuple[str, Sample]]:
    yield "transposed", _mapped(sample, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x)
    yield "strided", _mapped(sample, lambda x: torch.stack([x, x], -1)[..., 0])
    yield "scalars", _mapped(sample, lambda x: x.new_empty(()))
    first = _length(sample)
    if first is not None:
        yield "empty", _mapped(sample, lambda x: _resized(x, first, 0))
        yield "large", _mapped(sample, lambda x: _resized(x, first, first * _LARGE))


def _length(sample: Sample) -> int | None:
    """Return the first dimension of the first tensor that has one."""
    tensors = call_of(sample).tensors()
    return next((x.shape[0] for x in tensors if x.dim() > 0), None)


def _mapped(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    call = call_of(sample).mapped(change)
    return replace(sample, arguments=call.arguments, keywords=call.keywords)


def _channels_last(samples: Sequence[Sample]) -> Iterator[tuple[str, Sample]]:
    """Yield the first sample with images or volumes, in channels-last memory format."""

    def change(x: torch.Tensor) -> torch.Tensor:
        memory_format = _MEMORY_FORMATS.get(x.dim())
        return x if memory_format is None else x.contiguous(memory_format=memory_format)

    for sample in samples:
        if any(x.dim() in _MEMORY_FORMATS for x in call_of(sample).floats()):
            yield "channels last", _mapped(sample, change)
            return


def _resized(x: torch.Tensor, length: int, new_length: int) -> torch.Tensor:
    """Return a tensor on the meta device: it has a size, but no elements."""
    if x.dim() == 0 or x.shape[0] != length:
        return x
    return torch.empty(new_length, *x.shape[1:], dtype=x.dtype, device="meta")


@dataclass(frozen=True)
class _Option:
    """A non-tensor argument, with another value than the sample's."""

    index: int
    name: str
    value: Any

    def given_to(self, sample: Sample) -> Sample:
        """Return the sample with this value of the argument."""
        if self.index < len(sample.arguments):
            arguments = (*sample.arguments[: self.index], self.value, *sample.arguments[self.index + 1 :])
            return replace(sample, arguments=arguments)
        return replace(sample, keywords={**sample.keywords, self.name: self.value})


def _with_other_options(overload: str, sample: Sample, *, pairs: bool = False) -> Iterator[tuple[str, Sample]]:
    """Yield the sample with each other value of each option, and with ``pairs`` with any two of them."""
    options = list(_options(overload, sample))
    for option in options:
        yield f"{option.name}={option.value}", option.given_to(sample)
    if pairs:
        for one, other in itertools.combinations(options, 2):
            if one.name != other.name:
                what = f"{one.name}={one.value}, {other.name}={other.value}"
                yield what, other.given_to(one.given_to(sample))


def _options(overload: str, sample: Sample) -> Iterator[_Option]:
    """Yield negative dimensions, and other non-tensor arguments with other values than in ``sample``."""
    function = torch_private.find_overload(overload)
    defaults = torch_private.defaults_of(function)
    for index, (name, kind) in enumerate(torch_private.arguments_of(function).items()):
        is_positional = index < len(sample.arguments)
        usual = sample.arguments[index] if is_positional else sample.keywords.get(name, defaults.get(name))
        values: tuple[Any, ...]
        if name == "dim" and is_positional:
            values = (_from_the_end(usual, sample),)
        elif name == "reduction":
            values = (0, 2)
        elif name in _WORDS and "str" in kind:
            values = _WORDS[name]
        elif kind in _OTHER and (usual is not None or kind.startswith("Optional")):
            values = _OTHER[kind](usual)
        else:
            continue
        yield from (_Option(index, name, value) for value in values if value != usual)


def _from_the_end(dim: Any, sample: Sample) -> Any:
    if isinstance(dim, (list, tuple)):
        return [_from_the_end(item, sample) for item in dim]
    tensors = call_of(sample).tensors()
    return dim - tensors[0].dim() if isinstance(dim, int) and tensors and dim >= 0 else dim
