"""Sample arguments of elementwise operators, reductions, norms, softmax, normalization, cat, stack and scatter."""

# ruff: noqa: FBT003  # operators take booleans by position
from __future__ import annotations

import torch

from pytest_amp.rules.samples.sample import Build, Sample, Values

_of = Sample.of


def _batch_norm(v: Values) -> Sample:
    # In evaluation mode: in training mode the operator updates the running statistics.
    x, weight, bias = v.normal(4, 3, 5), v.normal(3), v.normal(3)
    running_mean, running_variance = v.normal(3), v.uniform(3)
    return _of(x, weight, bias, running_mean, running_variance, False, 0.1, 1e-5, False)


#: Builders of samples by operator overload, without the namespace ``aten``.
ELEMENTWISE: dict[str, Build] = {
    "acos": lambda v: _of(v.uniform(3, 4, low=-0.9)),
    "addcdiv": lambda v: _of(v.normal(3, 4), v.normal(3, 4), v.uniform(3, 4), value=0.7),
    "addcmul": lambda v: _of(v.normal(3, 4), v.normal(3, 4), v.normal(3, 4), value=0.7),
    "asin": lambda v: _of(v.uniform(3, 4, low=-0.9)),
    "atan2": lambda v: _of(v.normal(3, 4), v.normal(3, 4)),
    "cosh": lambda v: _of(v.normal(3, 4)),
    "erfinv": lambda v: _of(v.uniform(3, 4, low=-0.9)),
    "exp": lambda v: _of(v.normal(3, 4)),
    "expm1": lambda v: _of(v.normal(3, 4)),
    "fake_quantize_per_tensor_affine": lambda v: _of(v.uniform(20, 20, low=0.0, high=20.0), 0.1, 3, 0, 255),
    "log": lambda v: _of(v.uniform(3, 4)),
    "log10": lambda v: _of(v.uniform(3, 4)),
    "log1p": lambda v: _of(v.uniform(3, 4)),
    "log2": lambda v: _of(v.uniform(3, 4)),
    "polar": lambda v: _of(v.uniform(3, 4), v.normal(3, 4)),
    "pow.Scalar": lambda v: _of(1.7, v.normal(3, 4)),
    "pow.Tensor_Scalar": lambda v: _of(v.uniform(3, 4), 1.7),
    "pow.Tensor_Tensor": lambda v: _of(v.uniform(3, 4), v.normal(3, 4)),
    "reciprocal": lambda v: _of(v.uniform(3, 4)),
    "rsqrt": lambda v: _of(v.uniform(3, 4)),
    "sinh": lambda v: _of(v.normal(3, 4)),
    "softplus": lambda v: _of(v.normal(3, 4)),
    "tan": lambda v: _of(v.normal(3, 4)),
    "view_as_complex": lambda v: _of(v.normal(3, 4, 2)),
    # Reductions, scans and norms
    "cumprod": lambda v: _of(v.normal(3, 4), 1),
    "cumsum": lambda v: _of(v.normal(3, 4), 1),
    "frobenius_norm.dim": lambda v: _of(v.normal(3, 4), [0, 1]),
    "linalg_matrix_norm": lambda v: _of(v.normal(3, 4), 1),
    "linalg_matrix_norm.str_ord": lambda v: _of(v.normal(3, 4), "fro"),
    "linalg_vector_norm": lambda v: _of(v.normal(3, 4), 2, [1]),
    "logsumexp": lambda v: _of(v.normal(3, 4), [1]),
    "nanquantile": lambda v: _of(v.normal(9), v.uniform(2)),
    "nanquantile.scalar": lambda v: _of(v.normal(9), 0.3),
    "norm.Scalar": lambda v: _of(v.normal(3, 4), 2),
    "norm.ScalarOpt_dim": lambda v: _of(v.normal(3, 4), 2, [1], False),
    "nuclear_norm": lambda v: _of(v.normal(3, 4)),
    "nuclear_norm.dim": lambda v: _of(v.normal(3, 4), [0, 1]),
    "prod": lambda v: _of(v.normal(3, 4)),
    "prod.dim_int": lambda v: _of(v.normal(3, 4), 1),
    "quantile": lambda v: _of(v.normal(9), v.uniform(2)),
    "quantile.scalar": lambda v: _of(v.normal(9), 0.3),
    "renorm": lambda v: _of(v.normal(3, 4), 2, 0, 1.1),
    "sum": lambda v: _of(v.normal(3, 4)),
    "sum.dim_IntList": lambda v: _of(v.normal(3, 4), [1]),
    # Softmax and normalization
    "batch_norm": _batch_norm,
    "group_norm": lambda v: _of(v.normal(2, 4, 3), 2, v.normal(4), v.normal(4)),
    "layer_norm": lambda v: [
        _of(v.normal(3, 8), [8], v.normal(8), v.normal(8)),
        _of(v.normal(3, 8), [8]),
    ],
    "log_softmax.int": lambda v: _of(v.normal(3, 4), 1),
    "native_layer_norm": lambda v: _of(v.normal(3, 8), [8], v.normal(8), v.normal(8), 1e-5),
    "rms_norm": lambda v: _of(v.normal(3, 8), [8], v.normal(8)),
    "softmax.int": lambda v: _of(v.normal(3, 4), 1),
    # Concatenation and indexed writes
    "cat": lambda v: [_of([v.normal(2, 3), v.normal(4, 3)]), _of([v.normal(2, 3), v.normal(1, 3), v.normal(4, 3)], 0)],
    "index_copy": lambda v: _of(v.normal(5, 3), 0, v.permutation(5)[:2], v.normal(2, 3)),
    "index_put": lambda v: _of(v.normal(5, 3), [v.permutation(5)[:2]], v.normal(2, 3)),
    # Indices without duplicates: an accelerator adds values at duplicate indices in nondeterministic order (atomics).
    "scatter_add": lambda v: _of(
        v.normal(4, 3), 0, torch.stack([v.permutation(4)[:2] for _ in range(3)], 1), v.normal(2, 3)
    ),
    "stack": lambda v: _of([v.normal(2, 3), v.normal(2, 3), v.normal(2, 3)], 1),
}
