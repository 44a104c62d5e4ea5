"""Casts of autocast itself round once, to nearest with ties to even."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.formats import FORMATS, converted, neighbours

from .numbers import spread, tensor_of


@pytest.mark.amp_parametrize("name", lambda target: [target.precision.name])
def test_autocasts_own_casts_round_so(amp: SuiteAmp, name: str) -> None:
    """A product with the identity under autocast returns the input, rounded once by autocast's cast."""
    form = FORMATS[name]
    near = neighbours(form)
    values = np.concatenate([near.ties, near.below, near.above])
    inputs = spread(values[np.abs(values) < 2.0**14], 64 * 64)
    square = tensor_of(inputs[: 63 * 64], amp).reshape(63, 64)
    with amp.autocast():
        actual = torch.mm(square, torch.eye(64, device=amp.device.torch_device))
    assert actual.dtype is form.dtype
    rounded = form.round(inputs[: 63 * 64])
    values = converted(actual, form).reshape(-1)
    # Kernels may read subnormal values as zero; normal values are kept.
    normal = np.abs(rounded) >= form.smallest_normal
    assert np.array_equal(values[normal], rounded[normal])
