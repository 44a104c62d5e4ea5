"""Operators with non-default arguments: dimensions, modes, reductions, masks, sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.data_files.releases import holds_in, release_of

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """Function of tensors of these shapes: those in the autocast dtype, then those in float32.

    ``distinct`` makes all values of a tensor different, for functions that select. ``most`` is the allowed error in
    units of u: arguments, saved tensors and results are rounded, and with a larger bound also intermediate values.
    Float32 results are allowed float32's rounding only, unless an intermediate value is ``rounded``. Accelerators have
    different rules, and so ``most`` and ``rounded`` values of their own if given: seen on CUDA (torch 2.11).
    """

    function: Callable[..., Tensor]
    low: tuple[Shape, ...]
    wide: tuple[Shape, ...] = ()
    distinct: bool = False
    rounded: bool = False
    most: float = 4.0
    rounded_elsewhere: bool = False
    most_elsewhere: float = 0.0


def of(*shape: int, **keywords: Any) -> Callable[[Callable[..., Tensor]], Row]:
    """Return a row of one low-precision tensor of ``shape``."""
    return lambda function: Row(function, (shape,), **keywords)


_CUBE, _IMAGE, _VOLUME = (12, 40, 24), (2, 4, 9, 9), (2, 3, 5, 6, 7)
_cube, _image, _volume = of(*_CUBE), of(*_IMAGE), of(*_VOLUME)
#: Long enough to detect accumulation in the low dtype; a sum itself is rounded once.
_long = of(300, 4, 200, most=1.5)
_wide, _chosen, _picture = of(*_CUBE), of(12, 20, distinct=True), of(2, 2, 9, 9, distinct=True)

REDUCTIONS = {
    "sum of two dimensions": _long(lambda x: x.sum((0, 2), keepdim=True)),
    "mean of two dimensions": _long(lambda x: x.mean((0, 2)) * 256),
    "var of two dimensions, no correction": _cube(lambda x: x.var((0, 2), correction=0)),
    "var, correction of 5": of(12, 8)(lambda x: x.var(0, correction=5)),
    "std of two dimensions": _cube(lambda x: x.std((0, 1), correction=2)),
    "var_mean": of(12, 8)(lambda x: torch.cat(torch.var_mean(x, 0, correction=0))),
    "norm of order 3": _cube(lambda x: x.norm(3, dim=(0, 1))),
    "norm of order 1 of a column": _cube(lambda x: x.norm(1, dim=1)),
    "cdist of order 1": Row(lambda a, b: torch.cdist(a, b, 1.0), (), ((8, 24), (16, 24))),
    "matrix norm": _cube(lambda x: torch.linalg.matrix_norm(x, dim=(0, 2))),
    # Its gradient is an exponential of the rounded result: its error is the result times u.
    "logsumexp of two dimensions": of(*_CUBE, most=16.0)(lambda x: x.logsumexp((0, 1))),
    "nansum": _cube(lambda x: x.nansum((0, 1))),
    "nanmean": _cube(lambda x: x.nanmean(1)),
    "softmax of channels": of(3, 12, 5, 6)(lambda x: x.softmax(1)),
    "log_softmax of rows": of(60, 4)(lambda x: x.log_softmax(0)),
    "softmin": of(12, 20)(lambda x: f.softmin(x, 0)),
    # In backward CUDA accumulates in the dtype of the argument, and rounds each sum.
    "cumsum of a column": of(300, 4, most_elsewhere=24.0)(lambda x: x.abs().cumsum(0)),
    "cumsum of strides": of(300, 8, most_elsewhere=24.0)(lambda x: x.abs()[:, ::2].cumsum(0)),
    "prod of columns": of(20, 8, distinct=True)(lambda x: x.prod(0)),
    "sum in float32": _wide(lambda x: x.sum(1, dtype=torch.promote_types(x.dtype, torch.float32))),
    "mean in float32": _wide(lambda x: x.mean((0, 2), dtype=torch.promote_types(x.dtype, torch.float32))),
    "softmax in float32": _wide(lambda x: x.softmax(0, dtype=torch.promote_types(x.dtype, torch.float32))),
    "log_softmax in float32": _wide(lambda x: x.log_softmax(1, dtype=torch.promote_types(x.dtype, torch.float32))),
    "cumsum in float32": _wide(lambda x: x.cumsum(1, dtype=torch.promote_types(x.dtype, torch.float32))),
    "functional.softmax in float32": _wide(
        lambda x: f.softmax(x, 1, dtype=torch.promote_types(x.dtype, torch.float32))
    ),
    "functional.log_softmax in float32": _wide(
        lambda x: f.log_softmax(x, 1, dtype=torch.promote_types(x.dtype, torch.float32))
    ),
    "functional.softmin in float32": _wide(
        lambda x: f.softmin(x, 1, dtype=torch.promote_types(x.dtype, torch.float32))
    ),
    "nansum in float32": _wide(lambda x: x.nansum(1, dtype=torch.promote_types(x.dtype, torch.float32))),
    "vector_norm in float32": _wide(
        lambda x: torch.linalg.vector_norm(x, dim=1, dtype=torch.promote_types(x.dtype, torch.float32))
    ),
    "prod in float32": of(6, 8)(lambda x: x.prod(0, dtype=torch.promote_types(x.dtype, torch.float32))),
    "amax of two dimensions": _chosen(lambda x: x.view(3, 4, 20).amax((0, 2))),
    "median": _chosen(lambda x: x.median(1)[0]),
    "kthvalue": _chosen(lambda x: x.kthvalue(3, 0)[0]),
    "topk": _chosen(lambda x: x.topk(7, 1)[0]),
    "sort of columns": _chosen(lambda x: x.sort(0, descending=True)[0]),
    "stable sort": _chosen(lambda x: x.sort(stable=True)[0]),
    "cummax": _chosen(lambda x: x.cummax(0)[0]),
    "min beside another": Row(torch.minimum, ((12, 20), (12, 20)), distinct=True),
}

#: Up to torch 2.6 rms_norm computes in the dtype of its input before its weight makes it float32.
_OLD = holds_in(release_of(torch.__version__), since=None, until="2.6")

NORMS = {
    "layer_norm of two dimensions": Row(
        lambda x, w, b: f.layer_norm(x, w.shape, w, b, eps=0.1), ((6, 5, 12),), ((5, 12), (5, 12))
    ),
    "group_norm of one group": Row(lambda x, w, b: f.group_norm(x, 1, w, b, eps=0.1), (_IMAGE,), ((4,), (4,))),
    "rms_norm of two dimensions": Row(
        lambda x, w: f.rms_norm(x, w.shape, w, eps=0.1), ((6, 5, 12),), ((5, 12),), rounded=_OLD
    ),
    "instance_norm": Row(lambda x, w, b: f.instance_norm(x, weight=w, bias=b, eps=0.1), (_IMAGE,), ((4,), (4,))),
    "batch_norm, eps": Row(
        lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True, eps=0.1), (_IMAGE,), ((4,), (4,))
    ),
    "batch_norm in evaluation": Row(
        lambda x, m, w: f.batch_norm(x, m.detach(), m.detach().square() + 0.5, w, eps=0.1), (_IMAGE,), ((4,), (4,))
    ),
    "local_response_norm": of(2, 12, 5, 5, rounded=True)(lambda x: f.local_response_norm(x, 3, alpha=0.5)),
    "normalize of order 1": of(12, 20)(lambda x: f.normalize(x, p=1.0, dim=0)),
    "normalize, eps": of(12, 20)(lambda x: f.normalize(x / 64, eps=1.0)),
}  # fmt: skip


def _sampled(mode: str, padding: str, *, aligned: bool) -> Row:
    def sample(x: Tensor, grid: Tensor) -> Tensor:
        return f.grid_sample(x, (grid * 0.6).view(2, 6, 6, 2), mode, padding, align_corners=aligned)

    return Row(sample, (_IMAGE,), ((2, 72),), most=8.0)


SPATIAL = {
    "max_pool1d": of(2, 4, 15, distinct=True)(lambda x: f.max_pool1d(x, 3, 2, 1, 2, ceil_mode=True)),
    "max_pool2d, dilation": _picture(lambda x: f.max_pool2d(x, 3, 1, 1, 2)),
    "max_pool2d, ceil": _picture(lambda x: f.max_pool2d(x, 2, 2, ceil_mode=True)),
    "max_pool3d": of(1, 2, 5, 6, 5, distinct=True)(lambda x: f.max_pool3d(x, 2, 1, 1, 2)),
    "adaptive_max_pool2d": _picture(lambda x: f.adaptive_max_pool2d(x, (4, 3))),
    "avg_pool1d": of(2, 4, 15)(lambda x: f.avg_pool1d(x, 4, 2, 1, ceil_mode=True, count_include_pad=False)),
    "avg_pool2d, padding not counted": _image(lambda x: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "avg_pool2d, padding": _image(lambda x: f.avg_pool2d(x, 3, 2, 1)),
    "avg_pool2d, divisor": _image(lambda x: f.avg_pool2d(x, 3, divisor_override=5)),
    "avg_pool3d": _volume(lambda x: f.avg_pool3d(x, 3, 2, 1, count_include_pad=False, divisor_override=7)),
    "lp_pool2d": of(*_IMAGE, rounded_elsewhere=True)(lambda x: f.lp_pool2d(x.abs() + 0.5, 3.0, 3, 2)),
    "adaptive_avg_pool1d": of(2, 4, 15)(lambda x: f.adaptive_avg_pool1d(x, 4)),
    "adaptive_avg_pool2d": _image(lambda x: f.adaptive_avg_pool2d(x, (4, 5))),
    "adaptive_avg_pool3d": _volume(lambda x: f.adaptive_avg_pool3d(x, (2, 4, 3))),
    **{
        f"interpolate, {mode}{', aligned' if aligned else ''}": of(*shape)(
            lambda x, mode=mode, aligned=aligned: f.interpolate(x, scale_factor=1.7, mode=mode, align_corners=aligned)
        )
        for mode, shape in (("linear", (2, 4, 15)), ("bilinear", _IMAGE), ("bicubic", _IMAGE), ("trilinear", _VOLUME))
        for aligned in (False, True)
    },
    **{
        f"interpolate, {mode}": _image(lambda x, mode=mode: f.interpolate(x, size=(14, 5), mode=mode))
        for mode in ("nearest", "nearest-exact", "area")
    },
    "interpolate, antialiased": Row(
        lambda x: f.interpolate(x, size=(5, 6), mode="bilinear", antialias=True), (), ((1, 2, 16, 16),)
    ),
    "grid_sample at the border": _sampled("bilinear", "border", aligned=True),
    "grid_sample, aligned": _sampled("bilinear", "zeros", aligned=True),
    "grid_sample, bicubic": _sampled("bicubic", "zeros", aligned=False),
    "affine_grid": Row(lambda x: f.affine_grid(x, [2, 3, 5, 6], align_corners=True), (), ((2, 2, 3),)),
    **{
        f"pad, {mode}": _image(lambda x, mode=mode: f.pad(x, (2, 1, 0, 3), mode=mode))
        for mode in ("constant", "reflect", "replicate", "circular")
    },
    "pad by less than nothing": _image(lambda x: f.pad(x, (-2, 1, 3, -1))),
    "pad with a number": _image(lambda x: f.pad(x, (2, 1), value=0.1)),
    "pixel_unshuffle": of(2, 4, 6, 6)(lambda x: f.pixel_unshuffle(x, 3)),
    "unfold": _image(lambda x: f.unfold(x, 3, dilation=2, padding=1, stride=2)),
    "fold": of(2, 36, 16)(lambda x: f.fold(x, (6, 6), 3)),
}  # fmt: skip


def _index(x: Tensor, count: int) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 5 % count


def _everywhere(x: Tensor, count: int) -> Tensor:
    return _index(x, count)[:, None].expand_as(x)


def _written(x: Tensor, y: Tensor) -> Tensor:
    x[4:9] = y
    return x


def _bag(w: Tensor, **keywords: Any) -> Tensor:
    indices = torch.arange(40, device=w.device) * 7 % w.shape[0]
    return f.embedding_bag(indices, w, torch.tensor([0, 3, 17], device=w.device), **keywords)


def _scattered(reduce: str, *, itself: bool) -> Row:
    """Reduce eight rows into each index, accumulated in the low dtype."""

    def scatter(x: Tensor, y: Tensor) -> Tensor:
        return x.scatter_reduce(0, _everywhere(y, 5), y, reduce, include_self=itself)

    return Row(scatter, ((5, 6), (40, 6)), most=8.0)


_PAIR = ((5, 6), (20, 6))  # four rows for each index: a CPU accumulates them in the low dtype

INDEXING = {
    "index_add": Row(lambda x, y: x.index_add(0, _index(y, 5), y, alpha=0.5), _PAIR),
    "index_put, accumulating": Row(lambda x, y: x.index_put((_index(y, 5),), y, accumulate=True), _PAIR),
    "scatter_reduce, sum": _scattered("sum", itself=True),
    "scatter_reduce, mean": _scattered("mean", itself=True),
    "scatter_reduce, mean without itself": _scattered("mean", itself=False),
    "scatter_reduce, amax": Row(
        lambda x, y: x.scatter_reduce(0, _everywhere(y, 5), y, "amax"), ((5, 6), (20, 6)), distinct=True
    ),
    "index_reduce, mean": Row(lambda x, y: x.index_reduce(0, _index(y, 5), y, "mean"), ((5, 6), (40, 6))),
    "gather of columns": of(12, 20)(lambda x: x.gather(0, torch.arange(100, device=x.device).view(5, 20) % 12)),
    "take_along_dim": of(12, 20)(lambda x: x.take_along_dim(torch.arange(40, device=x.device).view(2, 20) % 12, 0)),
    "repeat_interleave": of(12, 20)(lambda x: x.repeat_interleave(33, 1)),
    "expand": of(4, 1, 6)(lambda x: x.expand(4, 500, 6).contiguous()),
    "expand of a row": of(1, 20)(lambda x: x.expand(500, 20).contiguous()),
    "repeat": of(4, 6)(lambda x: x.repeat(300, 2)),
    "a row beside many": Row(torch.mul, ((1, 20), (300, 20))),
    "a column beside many": Row(lambda x, y: y - x, ((300, 20), (300, 1))),
    "a part of a split": of(12, 20)(lambda x: x.split((3, 2, 7))[1] * 3),
    "two of five chunks": of(5, 20)(lambda x: x.chunk(5)[1] * x.chunk(5)[3]),
    "some of unbind": of(5, 20)(lambda x: torch.stack((x.unbind()[1], x.unbind()[4]))),
    "a slice is written": Row(lambda x, y: _written(x * 2, y) * 0.3, (), ((12, 20), (5, 20))),
    "a slice of low numbers is written": Row(lambda x, y: _written(x * 2, y) * 0.3, ((12, 20), (5, 20))),
    "copied into columns": Row(lambda x, y: _written((x * 2).t(), y.t()) * 0.3, (), ((20, 12), (20, 5))),
    "masked_scatter": Row(lambda x, y: x.masked_scatter(_index(x, 3)[:, None] == 1, y), (), ((12, 20), (12, 20))),
    "masked_fill": of(12, 20)(lambda x: x.masked_fill(x > 0.5, 0.1)),
    "tril": of(12, 20)(lambda x: x.tril(-2).roll(3, 1).flip(0)),
    "clamp by tensors": Row(lambda x, y: x.clamp(y, y * 2), ((12, 20), (12, 20)), distinct=True),
    "lerp by a tensor": Row(torch.lerp, ((12, 20), (12, 20), (12, 20))),
    "embedding, padding": Row(lambda w: f.embedding(_index(w.new_empty(60), 9), w, padding_idx=3), (), ((9, 16),)),
    "embedding, by frequency": Row(
        lambda w: f.embedding(_index(w.new_empty(60), 9) // 2, w, scale_grad_by_freq=True), (), ((9, 16),)
    ),
    "embedding, sparse gradients": Row(
        lambda w: f.embedding(_index(w.new_empty(60), 9), w, sparse=True), (), ((9, 16),)
    ),
    "embedding of low weights": of(9, 16)(lambda w: f.embedding(_index(w.new_empty(600), 9), w)),
    "embedding of low weights, padding": of(9, 16)(lambda w: f.embedding(_index(w.new_empty(60), 9), w, padding_idx=3)),
    "embedding of low weights, by frequency": of(9, 16)(
        lambda w: f.embedding(_index(w.new_empty(60), 9) // 2, w, scale_grad_by_freq=True)
    ),
    "embedding_bag, sum": Row(lambda w: _bag(w, mode="sum", padding_idx=2), (), ((9, 16),)),
    "embedding_bag, mean": Row(lambda w: _bag(w, mode="mean"), (), ((9, 16),)),
    "embedding_bag, weighted": Row(lambda w, s: _bag(w, mode="sum", per_sample_weights=s), (), ((9, 16), (40,))),
}  # fmt: skip


def _classes(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 3 % x.shape[1]


def _ctc(x: Tensor) -> Tensor:
    """Compute a CTC loss whose second target is too long for its input: infinite, or zero with ``zero_infinity``."""
    device = x.device
    targets = torch.arange(12, device=device).view(2, 6) % 7 + 1
    lengths = torch.tensor([12, 3], device=device), torch.tensor([4, 6], device=device)
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).log_softmax(-1)
    return f.ctc_loss(wide, targets, *lengths, reduction="sum", zero_infinity=True)


_LOGITS, _TWO = (24, 12), ((24, 12), (24, 12))
_REDUCTIONS = ("none", "sum", "mean")

LOSSES = {
    "cross_entropy, everything": Row(
        lambda x, w: f.cross_entropy(x, _classes(x), w.detach().abs() + 0.5, ignore_index=3, label_smoothing=0.2),
        (_LOGITS,), ((12,),), rounded_elsewhere=True,
    ),
    **{
        f"multilabel_soft_margin, weighted, {reduction}": of(*_LOGITS, rounded_elsewhere=True)(
            lambda x, r=reduction: f.multilabel_soft_margin_loss(
                x, (x > 0.25).to(x.dtype), torch.arange(1.0, 13, device=x.device, dtype=x.dtype) / 8, reduction=r
            )
        )
        for reduction in _REDUCTIONS
    },
    "multilabel_margin": of(*_LOGITS, distinct=True)(
        lambda x: f.multilabel_margin_loss(x, torch.arange(24, device=x.device).view(24, 1).expand(24, 12) % 12)
    ),
    "multi_margin, p of 2": Row(
        lambda x, w: f.multi_margin_loss(x, _classes(x), p=2, margin=0.7, weight=w.detach().abs().to(x.dtype)),
        (_LOGITS,), ((12,),), rounded=True, most=8.0,
    ),
    "smooth_l1, beta": Row(lambda x, y: f.smooth_l1_loss(x, y, beta=0.3), _TWO),
    "huber, delta": Row(lambda x, y: f.huber_loss(x, y, delta=0.3), _TWO),
    "poisson, full": Row(
        lambda x, y: f.poisson_nll_loss(x.abs() + 0.5, y.square() + 1.5, log_input=False, full=True, eps=0.1), _TWO,
        rounded=True, most=8.0,
    ),
    **{
        f"gaussian, full, {reduction}": Row(
            lambda x, y, r=reduction: f.gaussian_nll_loss(x, y, y.detach().square() + 0.5, full=True, reduction=r),
            _TWO, most=8.0, rounded_elsewhere=True,
        )
        for reduction in _REDUCTIONS
    },
    "kl_div of logarithms": Row(
        lambda x, y: f.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True), _TWO,
        rounded=True, most=12.0,
    ),
    "triplet_margin, swapped": Row(
        lambda x, y, z: f.triplet_margin_loss(x, y, z, margin=2.0, p=1.0, swap=True), (_LOGITS,) * 3, most=12.0
    ),
    "cosine_embedding, margin": Row(
        lambda x, y: f.cosine_embedding_loss(x, y, _classes(x) % 2 * 2 - 1, margin=-0.5), _TWO, most=8.0
    ),
    "binary_cross_entropy_with_logits, everything": Row(
        lambda x, y: f.binary_cross_entropy_with_logits(
            x, y.detach().sigmoid(), y.detach().abs(), pos_weight=y.detach()[0].abs() + 0.5
        ),
        _TWO, rounded=True, most=8.0,
    ),
    "ctc, zero_infinity": Row(_ctc, (), ((12, 2, 8),)),
}  # fmt: skip

ACTIVATIONS = {
    name: of(24, 20)(function)
    for name, function in {
        "elu, alpha": lambda x: f.elu(x, 0.3),
        "celu, alpha": lambda x: f.celu(x, 0.3),
        "leaky_relu, slope": lambda x: f.leaky_relu(x, 0.3),
        "softplus, beta": lambda x: f.softplus(x, 3.0, 2.0),
        "threshold": lambda x: f.threshold(x, 0.25, -0.75),
        "hardtanh": lambda x: f.hardtanh(x, -0.25, 0.75),
        "rrelu in evaluation": lambda x: f.rrelu(x, 0.1, 0.5),
        "glu of rows": lambda x: f.glu(x, 0),
        "softshrink": lambda x: f.softshrink(x, 0.25),
        "hardshrink": lambda x: f.hardshrink(x, 0.25),
        "nan_to_num": lambda x: x.nan_to_num(0.3),
    }.items()
}

#: Products and attention, which return low-precision results.
PRODUCTS = {
    "linear of many rows": Row(f.linear, ((700, 400), (16, 400), (16,))),
    "linear of float32 rows": Row(f.linear, (), ((700, 400), (16, 400), (16,))),
    "linear of a long row": Row(f.linear, (), ((3000,), (16, 3000), (16,))),
    "addmm, alpha and beta": Row(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (), ((30, 20), (30, 24), (24, 20))
    ),
    "baddbmm, alpha and beta": Row(
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5), (), ((3, 30, 20), (3, 30, 24), (3, 24, 20))
    ),
    "addbmm, alpha and beta": Row(
        lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=0.5), (), ((30, 20), (3, 30, 24), (3, 24, 20))
    ),
    "bmm of one": Row(torch.bmm, (), ((1, 30, 24), (1, 24, 20))),
    "matmul of an expanded": Row(lambda a, b: a.expand(30, 24) @ b, (), ((1, 24), (24, 20))),
    "matmul of strides": Row(lambda a, b: a[:, ::2] @ b.t()[::2], (), ((30, 24), (20, 24))),
    "conv2d of one pixel": Row(f.conv2d, (), (_IMAGE, (6, 4, 1, 1), (6,))),
    "conv2d of many channels": Row(f.conv2d, (), ((2, 150, 6, 6), (8, 150, 3, 3), (8,))),
    "conv2d in channels_last": Row(
        lambda x, w, b: f.conv2d(x.contiguous(memory_format=torch.channels_last), w, b, 2, 1), (),
        (_IMAGE, (6, 4, 3, 3), (6,)),
    ),
    "conv1d of a long row": Row(lambda x, w: f.conv1d(x, w, padding=2), (), ((1, 4, 3000), (3, 4, 5))),
    "attention, causal of other lengths": Row(
        lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True), (),
        ((2, 2, 5, 16), (2, 2, 9, 16), (2, 2, 9, 16)),
    ),
    "attention of three dimensions": Row(f.scaled_dot_product_attention, (), ((4, 9, 16),) * 3),
    "attention, a mask for each head": Row(
        lambda q, k, v, m: f.scaled_dot_product_attention(q, k, v, attn_mask=m.to(q.dtype)), (),
        (*((2, 3, 9, 16),) * 3, (2, 3, 9, 9)),
    ),
    "attention, a row of a mask": Row(
        lambda q, k, v, m: f.scaled_dot_product_attention(q, k, v, attn_mask=m.to(q.dtype)), (),
        (*((2, 3, 9, 16),) * 3, (2, 1, 1, 9)),
    ),
    "attention, grouped": Row(
        lambda q, k, v: f.scaled_dot_product_attention(q, k, v, enable_gqa=True), (),
        ((2, 4, 9, 16), (2, 2, 9, 16), (2, 2, 9, 16)),
    ),
    "attention, long": Row(f.scaled_dot_product_attention, (), ((1, 2, 300, 16),) * 3),
    "attention of one query": Row(f.scaled_dot_product_attention, (), ((2, 2, 1, 16), (2, 2, 40, 16), (2, 2, 40, 16))),
    "attention of an odd width": Row(f.scaled_dot_product_attention, (), ((2, 2, 9, 7),) * 3),
    "attention of transposed heads": Row(
        lambda *of: f.scaled_dot_product_attention(*(x.transpose(1, 2) for x in of)), (), ((2, 9, 2, 16),) * 3
    ),
}  # fmt: skip

ROWS = {**REDUCTIONS, **NORMS, **SPATIAL, **INDEXING, **LOSSES, **ACTIVATIONS, **PRODUCTS}
