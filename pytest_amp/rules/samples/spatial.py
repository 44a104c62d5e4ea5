"""Samples of pooling, padding, resizing and grid sampling."""

# ruff: noqa: FBT003  # operators take booleans by position
from __future__ import annotations

import torch

from pytest_amp.rules.samples.sample import Build, Sample, Values

_of = Sample.of


def _grid(v: Values) -> Sample:
    return _of(v.normal(1, 2, 5, 5), v.uniform(1, 4, 4, 2, low=-0.9), 0, 0, False)


def _unpool(v: Values, *, dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    # Each value goes to a distinct element of a volume of twice the width.
    count = 2**dimensions
    return v.normal(1, *[2] * dimensions), v.permutation(count * 2)[:count].reshape(1, *[2] * dimensions)


def _resized(v: Values, dimensions: int, *, corners: bool) -> Sample:
    arguments = (v.normal(1, 2, *[4] * dimensions), [7] * dimensions)
    return _of(*arguments, False) if corners else _of(*arguments)


SPATIAL: dict[str, Build] = {
    "_grid_sampler_2d_cpu_fallback": _grid,
    "grid_sampler": _grid,
    "grid_sampler_2d": _grid,
    "grid_sampler_3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), v.uniform(1, 3, 3, 3, 3, low=-0.9), 0, 0, False),
    # Pooling
    "adaptive_avg_pool3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), [2, 2, 2]),
    "adaptive_max_pool3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), [2, 2, 2]),
    "avg_pool3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), [2, 2, 2]),
    "fractional_max_pool2d": lambda v: _of(v.normal(1, 2, 7, 7), [2, 2], [3, 3], v.uniform(1, 2, 2)),
    "fractional_max_pool3d": lambda v: _of(v.normal(1, 2, 7, 7, 7), [2, 2, 2], [3, 3, 3], v.uniform(1, 2, 3)),
    "max_pool3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), [2, 2, 2]),
    "max_unpool2d": lambda v: _of(*_unpool(v, dimensions=2), [2, 4]),
    "max_unpool3d": lambda v: _of(*_unpool(v, dimensions=3), [4, 2, 2], [2, 1, 1], [0, 0, 0]),
    # Padding
    "reflection_pad1d": lambda v: _of(v.normal(1, 2, 5), [1, 2]),
    "reflection_pad2d": lambda v: _of(v.normal(1, 2, 5, 5), [1, 2, 1, 2]),
    "replication_pad1d": lambda v: _of(v.normal(1, 2, 5), [1, 2]),
    "replication_pad2d": lambda v: _of(v.normal(1, 2, 5, 5), [1, 2, 1, 2]),
    "replication_pad3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), [1, 2, 1, 2, 1, 2]),
    # Resizing
    "_upsample_bicubic2d_aa": lambda v: _resized(v, 2, corners=True),
    "_upsample_bilinear2d_aa": lambda v: _resized(v, 2, corners=True),
    "_upsample_nearest_exact1d": lambda v: _resized(v, 1, corners=False),
    "_upsample_nearest_exact2d": lambda v: _resized(v, 2, corners=False),
    "_upsample_nearest_exact3d": lambda v: _resized(v, 3, corners=False),
    "upsample_bicubic2d": lambda v: _resized(v, 2, corners=True),
    "upsample_bilinear2d": lambda v: _resized(v, 2, corners=True),
    "upsample_linear1d": lambda v: _resized(v, 1, corners=True),
    "upsample_nearest1d": lambda v: _resized(v, 1, corners=False),
    "upsample_nearest2d": lambda v: _resized(v, 2, corners=False),
    "upsample_nearest3d": lambda v: _resized(v, 3, corners=False),
    "upsample_trilinear3d": lambda v: _resized(v, 3, corners=True),
}
