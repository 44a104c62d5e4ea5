"""Conversion between numpy arrays and tensors by bit patterns and float64, without torch's conversions."""

from __future__ import annotations

import numpy as np
import torch

from pytest_amp.formats.format import Doubles, Format, Patterns

_INTEGERS = {8: (np.uint8, torch.uint8), 16: (np.int16, torch.int16), 32: (np.int32, torch.int32)}


def from_patterns(patterns: Patterns, form: Format, device: torch.device) -> torch.Tensor:
    """Return a tensor of the format's dtype whose elements have these bit patterns."""
    numbers, _ = _INTEGERS[form.bits]
    unsigned = patterns.astype(np.uint64).astype(f"uint{form.bits}")
    return torch.from_numpy(unsigned.view(numbers).copy()).to(device).view(form.dtype)


def patterns_of(tensor: torch.Tensor, form: Format) -> Patterns:
    """Return the bit patterns of the elements of a tensor of the format's dtype."""
    _, integer = _INTEGERS[form.bits]
    signed = tensor.contiguous().view(integer).cpu().numpy()
    return signed.view(f"uint{form.bits}").astype(np.int64)


def converted(tensor: torch.Tensor, form: Format) -> Doubles:
    """Decode the values of a tensor of the format's dtype from their bits; the payload of a NaN is dropped."""
    return form.decode(patterns_of(tensor, form))
