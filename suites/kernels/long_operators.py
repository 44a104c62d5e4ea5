"""Operators on values of the autocast dtype, with a rule or without, at the requested length of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as f

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Long:
    """Function of tensors of these shapes, by length: the ones in the autocast dtype, then those in float32.

    ``spread`` is their standard deviation.
    """

    function: Callable[..., Tensor]
    low: Callable[[int], tuple[Shape, ...]]
    wide: Callable[[int], tuple[Shape, ...]] = lambda _: ()
    spread: float = 1.0


def rows(function: Callable[[Tensor], Tensor], *, spread: float = 1.0) -> Long:
    """Return ``function`` of four rows."""
    return Long(function, lambda k: ((4, k),), spread=spread)


def _cells(x: Tensor) -> Tensor:
    """Return the rows as square images of four channels."""
    side = math.isqrt(x.numel() // 8)
    return x.flatten()[: 8 * side * side].view(2, 4, side, side)


def images(function: Callable[[Tensor], Tensor]) -> Long:
    """Return ``function`` of two images of four channels, with ``k`` pixels in all."""
    return Long(lambda x: function(_cells(x)), lambda k: ((8, k // 8),))


def _few(x: Tensor, count: int) -> Tensor:
    """Return an index for each element of the first dimension, each of ``count`` many times."""
    return torch.arange(x.shape[0], device=x.device) % count


def _sampled(images: Tensor, grid: Tensor) -> Tensor:
    """Sample ``images`` at least a quarter pixel off the grid: on the grid, rounding would select the neighbours."""
    size = images.shape[-1]
    places = ((grid + 1) * size - 1) / 2
    pixels = places.detach().floor()
    places = pixels + 0.25 + (places - pixels) / 2
    return f.grid_sample(images, (2 * places + 1) / size - 1, align_corners=False)


def _normalized(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return f.batch_norm(
        x, torch.zeros_like(weight.detach()), torch.ones_like(weight.detach()), weight, bias, training=True
    )


#: Operators that accumulate along their rows.
REDUCTIONS: dict[str, Long] = {
    "sum": rows(lambda x: x.sum(-1)),
    "sum_of_columns": Long(lambda x: x.sum(0), lambda k: ((k, 4),)),
    "sum_of_all": rows(lambda x: x.sum() + x[:2, :2]),
    "mean": rows(lambda x: x.mean(-1)),
    "mean_of_columns": Long(lambda x: x.mean(0), lambda k: ((k, 4),)),
    "variance": rows(lambda x: x.var(-1)),
    "deviation": rows(lambda x: x.std(-1)),
    "norm": rows(lambda x: x.norm(dim=-1)),
    "norm_1": rows(lambda x: torch.linalg.vector_norm(x, 1, dim=-1)),
    "cumsum": rows(lambda x: x.cumsum(-1)),
    "logcumsumexp": rows(lambda x: x.logcumsumexp(-1)),
    "cumprod": rows(lambda x: (x / 128 + 1).cumprod(-1)),
    "prod": rows(lambda x: torch.prod(x / 128 + 1, -1)),
    "prod_of_all": rows(lambda x: torch.prod(x / 256 + 1) + x[:2, :2]),
    "logsumexp": rows(lambda x: x.logsumexp(-1)),
    "softmax": rows(lambda x: x.softmax(-1)),
    "softmax_of_columns": Long(lambda x: x.softmax(0), lambda k: ((k, 4),)),
    "log_softmax": rows(lambda x: x.log_softmax(-1)),
    "normalize": rows(lambda x: f.normalize(x, dim=-1)),
    "cosine_similarity": Long(f.cosine_similarity, lambda k: ((4, k), (4, k))),
    "layer_norm": Long(lambda x, w, b: f.layer_norm(x, w.shape, w, b), lambda k: ((4, k),), lambda k: ((k,), (k,))),
    "layer_norm_low": rows(lambda x: f.layer_norm(x, x.shape[-1:])),
    "layer_norm_of_many_rows": Long(
        lambda x, w, b: f.layer_norm(x, w.shape, w, b), lambda k: ((k // 16, 16),), lambda _: ((16,), (16,))
    ),
    "rms_norm": Long(lambda x, w: f.rms_norm(x, w.shape, w), lambda k: ((4, k),), lambda k: ((k,),)),
    "group_norm": Long(
        lambda x, w, b: f.group_norm(_cells(x), 2, w, b), lambda k: ((8, k // 8),), lambda _: ((4,), (4,))
    ),
    "group_norm_low": images(lambda x: f.group_norm(x, 2)),
    "batch_norm": Long(_normalized, lambda k: ((k, 4),), lambda _: ((4,), (4,))),
    "batch_norm_of_images": Long(
        lambda x, w, b: _normalized(_cells(x), w, b), lambda k: ((8, k // 8),), lambda _: ((4,), (4,))
    ),
    "instance_norm": images(f.instance_norm),
    "avg_pool1d": rows(lambda x: f.avg_pool1d(x[None], x.shape[-1] // 2)),
    "avg_pool2d": images(lambda x: f.avg_pool2d(x, x.shape[-1] // 2)),
    "global_avg_pool2d": images(lambda x: f.adaptive_avg_pool2d(x, 1)),
    "adaptive_avg_pool2d": images(lambda x: f.adaptive_avg_pool2d(x, 2)),
    "adaptive_avg_pool3d": images(lambda x: f.adaptive_avg_pool3d(x, (3, 2, 2))),
    "max_pool2d": images(lambda x: f.max_pool2d(x, 2)),
    "interpolate_bilinear": images(lambda x: f.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)),
    "interpolate_to_a_size": images(lambda x: f.interpolate(x, size=(81, 75), mode="bilinear")),
    "interpolate_bicubic": images(lambda x: f.interpolate(x, size=(41, 35), mode="bicubic")),
    "interpolate_nearest_to_a_size": images(lambda x: f.interpolate(x.flatten(2), size=1000)),
    "interpolate_nearest": images(lambda x: f.interpolate(x, scale_factor=2.0)),
    "unfold": images(lambda x: f.unfold(x, 3, padding=1)),
    "index_add": Long(lambda x, y: x.index_add(0, _few(y, x.shape[0]), y), lambda k: ((4, 8), (k, 8))),
    "scatter_add": Long(
        lambda x, y: x.scatter_add(0, _few(y, x.shape[0])[:, None].expand_as(y), y), lambda k: ((4, 8), (k, 8))
    ),
    "index_select": Long(
        lambda x: x.index_select(0, torch.arange(2048, device=x.device) % 8), lambda k: ((8, k // 256),)
    ),
    "gather": Long(
        lambda x: x.gather(0, (torch.arange(2048, device=x.device) % 8)[:, None].expand(2048, x.shape[1])),
        lambda k: ((8, max(k // 1024, 1)),),
    ),
    "embedding": Long(lambda w: f.embedding(torch.arange(2048, device=w.device) % 8, w), lambda k: ((8, k // 256),)),
    "embedding_bag": Long(
        lambda w: f.embedding_bag(torch.arange(64, device=w.device).view(2, 32) % 8, w, mode="mean"),
        lambda _: (),
        lambda k: ((8, k // 64),),
    ),
    "embedding_bag_low": Long(
        lambda w: f.embedding_bag(torch.arange(64, device=w.device).view(2, 32) % 8, w, mode="mean"),
        lambda k: ((8, k // 64),),
    ),
    "embedding_of_float32": Long(
        lambda w: f.embedding(torch.arange(2048, device=w.device) % 8, w), lambda _: (), lambda k: ((8, k // 256),)
    ),
    "grid_sample": Long(
        lambda x, grid: _sampled(_cells(x), (grid * 0.5).view(2, -1, 8, 2)),
        lambda k: ((8, k // 8),),
        lambda k: ((k // 4, 2),),
    ),
    "mv": Long(torch.mv, lambda k: ((4, k), (k,)), spread=0.25),
    "mm": Long(torch.mm, lambda k: ((4, k), (k, 8)), spread=0.25),
    "linear": Long(f.linear, lambda k: ((4, k), (8, k), (8,)), spread=0.25),
    "conv1d": Long(f.conv1d, lambda k: ((1, k // 16, 24), (8, k // 16, 16), (8,)), spread=0.25),
}

#: By the dimensions of a tensor: its product, whole or along one of them. A CPU multiplies in the low dtype.
PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "of rows": lambda x: torch.prod(x, -1),
    "of rows, kept": lambda x: x.prod(dim=1, keepdim=True),
    "of short rows": lambda x: torch.prod(x.view(-1, 16), 1),
    "of columns": lambda x: torch.prod(x, 0),
    "of columns that lie side by side": lambda x: x.t().contiguous().t().prod(0),
    "in the middle": lambda x: torch.prod(x.view(4, -1, 8), 1),
    "of all": lambda x: torch.prod(x) * x[0, :24],
    "beside a zero": lambda x: torch.prod(x * (torch.arange(x.shape[1], device=x.device) != 3), 1),
    "running": lambda x: torch.cumprod(x, -1),
    "running down columns": lambda x: x.cumprod(0),
}

#: Elementwise functions, for which length has no meaning.
ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(f, name)
    for name in (
        *("celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid"),
        *("mish", "relu", "relu6", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink", "glu"),
    )
} | {
    name: getattr(torch, name)
    for name in (
        *("abs", "atan", "asinh", "cos", "erf", "erfc", "exp", "exp2", "expm1", "neg", "sigmoid", "sin"),
        *("sinh", "cosh", "square", "tan", "tanh", "sinc"),
    )
} | {
    "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
    "gelu_of_large": lambda x: f.gelu(4 * x),
    "gelu_tanh_of_large": lambda x: f.gelu(4 * x, approximate="tanh"),
    "reciprocal": lambda x: (x.abs() + 0.5).reciprocal(),
    "sqrt": lambda x: (x.abs() + 0.5).sqrt(),
    "rsqrt": lambda x: (x.abs() + 0.5).rsqrt(),
    # 2048 strided values, and 31 values, which do not fill a vector.
    "rsqrt_with_gaps": lambda x: (x.abs() + 0.5)[:, ::2].rsqrt(),
    "rsqrt_of_few": lambda x: (x[:31, 0].abs() + 0.5).rsqrt(),
    "log": lambda x: (x.abs() + 0.5).log(),
    "log2": lambda x: (x.abs() + 0.5).log2(),
    "log10": lambda x: (x.abs() + 0.5).log10(),
    "log1p": lambda x: x.abs().log1p(),
    "acos": lambda x: (x / 8).acos(),
    "asin": lambda x: (x / 8).asin(),
    "atanh": lambda x: (x / 8).atanh(),
    "erfinv": lambda x: (x / 8).erfinv(),
    "cube": lambda x: x**3,
    "power": lambda x: (x.abs() + 0.5) ** 1.7,
    "clamp": lambda x: x.clamp(-1, 1),
    "threshold": lambda x: f.threshold(x, 0.1, -1.0),
    "add": lambda x: x + x.flip(0),
    "add_number": lambda x: x + 0.3,
    "add_times_number": lambda x: torch.add(x, x.flip(0), alpha=0.3),
    "add_times_number_with_gaps": lambda x: torch.add(x[:, ::2], x[:, 1::2], alpha=0.3),
    "subtract_from_number": lambda x: 0.3 - x,
    "subtract": lambda x: x - 0.3 * x.flip(0),
    "multiply": lambda x: x * x.flip(0),
    "divide": lambda x: x / (x.flip(0).abs() + 0.5),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), x.flip(1), value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x.flip(0), x.flip(1).abs() + 0.5, value=0.3),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "atan2": lambda x: torch.atan2(x, x.flip(0) + 4),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0) + 4),
    "where": lambda x: torch.where(x > 0, x, x.flip(0) * 2),
    "pixel_shuffle": lambda x: f.pixel_shuffle(x.view(1, 4, -1, 2), 2),
    "reflection_pad": lambda x: f.pad(x, (2, 1), mode="reflect"),
}  # fmt: skip
