"""More samples of operators with non-tensor arguments: other dimensions, orders, reductions and modes.

A kernel that reads an argument before it casts, or does not pass one on, is correct for the samples of the other tables
and wrong for one of these. They are used by the check ``manual_casts`` only.
"""

# ruff: noqa: FBT003  # operators take booleans by position
from __future__ import annotations

import functools
import math
from typing import Any

from pytest_amp.rules.samples.sample import Build, Sample, Values

_of = Sample.of


def _each(*calls: tuple[Any, ...], shape: tuple[int, ...] = (3, 4)) -> Build:
    """Return samples of one normal tensor, followed by each of ``calls`` as the remaining arguments."""
    return lambda v: [_of(v.normal(*shape), *call) for call in calls]


def _softmax(v: Values) -> list[Sample]:
    return [_of(v.normal(3, 4), 0), _of(v.normal(2, 3, 2, 2), 1), _of(v.normal(5), -1), _of(v.normal(2, 700), 1)]


def _sums(v: Values) -> list[Sample]:
    image = v.normal(2, 3, 4)
    return [_of(v.normal(3, 4), [0], True), _of(image, [0, 2]), _of(image, [-1], True), _of(image, None)]


def _norms(v: Values) -> list[Sample]:
    orders = [_of(v.normal(3, 4), order, [0], True) for order in (1, 3, math.inf)]
    return [*orders, _of(v.normal(2, 3, 4), 2, [0, 2], False), _of(v.normal(7), None, [0], False)]


def _vector_norms(v: Values) -> list[Sample]:
    orders = [_of(v.normal(3, 4), order, [0], True) for order in (1, math.inf, -math.inf)]
    return [*orders, _of(v.normal(2, 3, 4), 3, [0, 2]), _of(v.normal(3, 4))]


def _layer_norms(v: Values) -> list[Sample]:
    return [
        _of(v.normal(2, 3, 8), [3, 8], v.normal(3, 8), v.normal(3, 8)),
        _of(v.normal(3, 8), [8], v.normal(8), v.normal(8), 0.1),
        _of(v.normal(2, 3, 300), [300], v.normal(300)),
    ]


def _reduced(v: Values, *, signs: bool = False) -> list[Sample]:
    """Return samples of two tensors, with the reductions none and sum."""
    return [_of(v.normal(4, 5), v.signs(4, 5) if signs else v.normal(4, 5), reduction) for reduction in (0, 2)]


def _binary(v: Values) -> list[Sample]:
    logits, targets = v.normal(4, 5), v.uniform(4, 5)
    return [
        _of(logits, targets),
        _of(logits, targets, None, v.uniform(5), 2),
        _of(logits, targets, v.uniform(5), None, 0),
    ]


def _cross_entropies(v: Values) -> list[Sample]:
    return [
        *(_of(v.normal(4, 5), v.integers(5, 4), None, reduction) for reduction in (0, 2)),
        _of(v.normal(4, 5), v.integers(5, 4), None, 1, 2),
        _of(v.normal(4, 5), v.integers(5, 4), None, 1, -100, 0.1),
        _of(v.normal(2, 5, 3, 3), v.integers(5, 2, 3, 3), v.uniform(5)),
        _of(v.normal(5), v.integers(5, 1)[0]),
    ]


def _grids(v: Values) -> list[Sample]:
    image, grid = v.normal(1, 2, 5, 5), v.uniform(1, 4, 4, 2, low=-1.4, high=1.4)
    return [_of(image, grid, *modes) for modes in ((1, 0, False), (0, 1, True), (0, 2, False))]


def _resized(v: Values, dimensions: int) -> Sample:
    return _of(v.normal(1, 2, *[4] * dimensions), [7] * dimensions, True)


def _convolutions(v: Values, dimensions: int) -> list[Sample]:
    image, kernel = [6] * dimensions, [3] * dimensions
    x, one = v.normal(2, 4, *image), [1] * dimensions
    return [
        _of(x, v.normal(6, 4, *kernel), None, [2] * dimensions, one, one),
        _of(x, v.normal(6, 4, *kernel), v.normal(6), one, [2] * dimensions, [2] * dimensions),
        _of(x, v.normal(6, 2, *kernel), v.normal(6), one, one, one, 2),
        _of(x, v.normal(6, 4, *one), v.normal(6)),
        _of(x[0], v.normal(6, 4, *kernel), v.normal(6)),
    ]


def _back_convolutions(v: Values, dimensions: int) -> list[Sample]:
    x, kernel, two = v.normal(2, 4, *[4] * dimensions), [3] * dimensions, [2] * dimensions
    one = [1] * dimensions
    return [
        _of(x, v.normal(4, 6, *kernel), None, two, one, one),
        _of(x, v.normal(4, 3, *kernel), v.normal(6), one, one, [0] * dimensions, 2, two),
    ]


def _attentions(v: Values) -> list[Sample]:
    query, key, value = v.normal(2, 2, 4, 16), v.normal(2, 2, 6, 16), v.normal(2, 2, 6, 16)
    long = [v.normal(1, 1, 160, 8) for _ in range(3)]
    retained = v.integers(4, 2, 1, 4, 6) > 0
    retained[..., 0] = True
    return [
        _of(query, key, value, None, 0.0, True),
        _of(query, key, value, v.normal(2, 2, 4, 6)),
        _of(query, key, value, v.normal(2, 1, 1, 6)),
        _of(query, key, value, retained),
        _of(query, key, value, None, 0.0, False, scale=0.3),
        _of(query[0], key[0], value[0]),
        _of(query[:, :, :1], key, value),
        _of(query[..., :7], key[..., :7], value[..., :7]),
        _of(query.transpose(1, 2), key[:, :, :4].transpose(1, 2), value[:, :, :4].transpose(1, 2)),
        _of(*long),
    ]


#: More samples, by operator.
ARGUMENTS: dict[str, Build] = {
    # Reductions, scans and norms
    "softmax.int": _softmax,
    "log_softmax.int": _softmax,
    "sum": lambda v: [_of(v.normal(2, 3, 4)), _of(v.normal(1))],
    "sum.dim_IntList": _sums,
    "prod.dim_int": _each((0, True), (-1,)),
    "cumsum": _each((0,), (-2,)),
    "cumprod": _each((0,), (-2,)),
    "logsumexp": _each(([0], True), ([0, 1],)),
    "norm.Scalar": _each((1,), (math.inf,)),
    "norm.ScalarOpt_dim": _norms,
    "linalg_vector_norm": _vector_norms,
    "linalg_matrix_norm": _each((math.inf,), (-1,), (2, [0, 1], True)),
    "linalg_matrix_norm.str_ord": _each(("nuc",), ("fro", [0, 1], True)),
    "frobenius_norm.dim": _each(([0, 1], True), ([1],)),
    "renorm": _each((1, 1, 1.1), (math.inf, 0, 0.7)),
    "layer_norm": _layer_norms,
    "rms_norm": lambda v: [_of(v.normal(2, 3, 8), [3, 8], v.normal(3, 8)), _of(v.normal(3, 8), [8], None, 0.1)],
    "native_layer_norm": lambda v: _of(v.normal(2, 3, 8), [3, 8], v.normal(3, 8), v.normal(3, 8), 0.1),
    "group_norm": lambda v: [_of(v.normal(2, 4, 3), 1), _of(v.normal(2, 4, 3, 3), 4, v.normal(4), v.normal(4), 0.1)],
    # Elementwise functions, joins and indexed writes
    "addcdiv": lambda v: _of(v.normal(3, 4), v.normal(4), v.uniform(3, 1)),
    "addcmul": lambda v: _of(v.normal(3, 4), v.normal(4), v.normal(3, 1)),
    "atan2": lambda v: _of(v.normal(3, 4), v.normal(4)),
    "softplus": _each((2.0, 1.0)),
    "pow.Tensor_Scalar": _each((2,), (3,), (0.5,)),
    "pow.Scalar": lambda v: _of(2, v.normal(3, 4)),
    "cat": lambda v: [
        _of([v.normal(2, 3), v.normal(2, 4)], 1),
        _of([v.normal(2, 3), v.normal(2, 3)], -1),
        _of([v.normal(2, 3), v.normal(0)]),  # affects the dtype only
        _of([v.normal(0), v.normal(2, 3)]),
    ],
    "stack": lambda v: _of([v.normal(2, 3), v.normal(2, 3)], -1),
    "index_copy": lambda v: _of(v.normal(5, 3), 1, v.permutation(3)[:2], v.normal(5, 2)),
    "index_put": lambda v: [
        _of(v.normal(5, 3), [v.permutation(5)[:2]], v.normal(2, 3), True),
        _of(v.normal(5, 3), [None, v.permutation(3)[:2]], v.normal(5, 2)),
        _of(v.normal(5, 3), [v.permutation(5) > 1], v.normal(3, 3)),
    ],
    "scatter_add": lambda v: _of(v.normal(3, 4), 1, v.permutation(4)[:2].expand(3, 2), v.normal(3, 2)),
    # Losses and distances
    "binary_cross_entropy": lambda v: [_of(v.uniform(4, 5), v.uniform(4, 5), None, n) for n in (0, 1)],
    "binary_cross_entropy_with_logits": _binary,
    "cross_entropy_loss": _cross_entropies,
    "mse_loss": _reduced,
    "l1_loss": _reduced,
    "huber_loss": lambda v: [*_reduced(v), _of(v.normal(4, 5), v.normal(4, 5), 1, 0.3)],
    "smooth_l1_loss": lambda v: [*_reduced(v), _of(v.normal(4, 5), v.normal(4, 5), 1, 0.3)],
    "soft_margin_loss": functools.partial(_reduced, signs=True),
    "hinge_embedding_loss": lambda v: [_of(v.normal(4, 5), v.signs(4, 5), 0.5, reduction) for reduction in (0, 2)],
    "margin_ranking_loss": lambda v: [_of(v.normal(6), v.normal(6), v.signs(6), 0.0, n) for n in (0, 2)],
    "cosine_embedding_loss": lambda v: [_of(v.normal(4, 5), v.normal(4, 5), v.signs(4), 0.0, n) for n in (0, 2)],
    "kl_div": lambda v: [
        _of(v.normal(4, 5).log_softmax(-1), v.normal(4, 5).softmax(-1), 0),
        _of(v.normal(4, 5).log_softmax(-1), v.normal(4, 5).log_softmax(-1), 2, log_target=True),
    ],
    "nll_loss": lambda v: [_of(v.normal(4, 5).log_softmax(-1), v.integers(5, 4), None, n, 2) for n in (0, 1, 2)],
    "poisson_nll_loss": lambda v: _of(v.uniform(4, 5), v.uniform(4, 5, high=3.0), False, True, 1e-3, 0),
    "triplet_margin_loss": lambda v: _of(v.normal(4, 5), v.normal(4, 5), v.normal(4, 5), 0.5, 1.0, 1e-6, True, 0),
    "multi_margin_loss": lambda v: _of(v.normal(4, 5), v.integers(5, 4), 2, 0.5, None, 0),
    "cdist": lambda v: [_of(v.normal(5, 4), v.normal(3, 4), p) for p in (0.0, 1.0, 3.0, math.inf)],
    "dist": lambda v: [_of(v.normal(4, 5), v.normal(4, 5), p) for p in (1, math.inf)],
    "pdist": _each((1.0,), (math.inf,)),
    "cosine_similarity": lambda v: [_of(v.normal(4, 5), v.normal(4, 5), 0), _of(v.normal(4, 5), v.normal(5), -1, 0.1)],
    # Pooling, resizing, sampling
    "adaptive_avg_pool3d": _each(([1, 1, 1],), ([3, 2, 1],), shape=(2, 4, 4, 4)),
    "avg_pool3d": _each(
        *(([3] * 3, [2] * 3, [1] * 3, *rest) for rest in ((True, False), (False, True, 5))), shape=(1, 2, 5, 5, 5)
    ),
    "max_pool3d": _each(([2] * 3, [1] * 3, [1] * 3, [2] * 3, True), shape=(1, 2, 5, 5, 5)),
    "grid_sampler": _grids,
    "grid_sampler_2d": _grids,
    "upsample_bicubic2d": functools.partial(_resized, dimensions=2),
    "upsample_bilinear2d": functools.partial(_resized, dimensions=2),
    "upsample_linear1d": functools.partial(_resized, dimensions=1),
    "upsample_trilinear3d": functools.partial(_resized, dimensions=3),
    # Products
    "linear": lambda v: [_of(v.normal(*rows, 4), v.normal(5, 4), v.normal(5)) for rows in ((), (2, 3), (2, 3, 2))],
    "matmul": lambda v: [
        *(_of(v.normal(*left), v.normal(*right)) for left, right in (((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)))),
        _of(v.normal(2, 1, 3, 4), v.normal(3, 4, 5)),
        _of(v.normal(4, 3).T, v.normal(5, 4).T),
        _of(v.normal(1, 4).expand(3, 4), v.normal(4, 5)),
    ],
    "mm": lambda v: [_of(v.normal(4, 3).T, v.normal(5, 4).T), _of(v.normal(1, 4), v.normal(4, 1))],
    "mv": lambda v: _of(v.normal(4, 3).T, v.normal(8)[::2]),
    "bmm": lambda v: [
        _of(v.normal(1, 3, 4), v.normal(1, 4, 5)),
        _of(v.normal(3, 4, 2).permute(2, 0, 1), v.normal(2, 4, 5)),
    ],
    "addmm": lambda v: [
        _of(v.normal(5), v.normal(3, 4), v.normal(4, 5)),
        _of(v.normal(3, 5), v.normal(3, 4), v.normal(4, 5), beta=0),
    ],
    "baddbmm": lambda v: [_of(v.normal(5), v.normal(2, 3, 4), v.normal(2, 4, 5), beta=b, alpha=0.3) for b in (0, 0.5)],
    "addmv": lambda v: _of(v.normal(1), v.normal(3, 4), v.normal(4), beta=0.5, alpha=0.3),
    "addr": lambda v: _of(v.normal(3, 4), v.normal(3), v.normal(4), beta=0.5, alpha=0.3),
    "bilinear": lambda v: _of(v.normal(2, 3, 4), v.normal(2, 3, 5), v.normal(6, 4, 5), None),
    "einsum": lambda v: [
        _of("ij,jk,kl->il", [v.normal(3, 4), v.normal(4, 5), v.normal(5, 2)]),
        _of("bhid,bhjd->bhij", [v.normal(2, 2, 3, 4), v.normal(2, 2, 5, 4)]),
        _of("ii->i", [v.normal(4, 4)]),
    ],
    "tensordot": lambda v: _of(v.normal(2, 3, 4), v.normal(4, 5), [2], [0]),
    "prelu": lambda v: _of(v.normal(2, 3, 4), v.uniform(1)),
    "conv1d": functools.partial(_convolutions, dimensions=1),
    "conv2d": functools.partial(_convolutions, dimensions=2),
    "conv3d": functools.partial(_convolutions, dimensions=3),
    "conv_transpose1d": functools.partial(_back_convolutions, dimensions=1),
    "conv_transpose2d.input": functools.partial(_back_convolutions, dimensions=2),
    "conv_transpose3d.input": functools.partial(_back_convolutions, dimensions=3),
    "scaled_dot_product_attention": _attentions,
}  # fmt: skip
