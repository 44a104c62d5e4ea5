"""Samples of products: matrix products, convolutions, attention, recurrent cells."""

# ruff: noqa: FBT003  # operators take booleans by position
from __future__ import annotations

from pytest_amp.rules.samples.sample import Build, Sample, Values

_of = Sample.of


def _attention(v: Values) -> list[Sample]:
    query, key, value = (v.normal(2, 2, 8, 16) for _ in range(3))
    return [_of(query, key, value), _of(query, key, value, v.normal(2, 2, 8, 8))]


def _flash_attention(v: Values) -> Sample:
    sample = _of(v.normal(2, 2, 16, 32), v.normal(2, 2, 16, 32), v.normal(2, 2, 16, 32))
    return sample.without(6, 7, 8, reason="the random state and the debug mask of a dropout that is off")


def _multi_head_attention(v: Values) -> Sample:
    query, key, value = (v.normal(2, 4, 8) for _ in range(3))
    return _of(query, key, value, 8, 2, v.normal(24, 8), v.normal(24), v.normal(8, 8), v.normal(8))


def _cell(v: Values, *, gates: int) -> tuple[object, ...]:
    return v.normal(gates * 4, 3), v.normal(gates * 4, 4), v.normal(gates * 4), v.normal(gates * 4)


def _mkldnn_rnn_layer(v: Values) -> Sample:
    weights = v.normal(20, 4), v.normal(20, 5), v.normal(20), v.normal(20)
    state = v.normal(2, 5), v.normal(2, 5)
    sample = _of(v.normal(3, 2, 4), *weights, *state, False, [], 2, 5, 1, True, False, False, False)
    return sample.without(3, reason="oneDNN's workspace, which only training fills")


def _vendor_rnn(v: Values, *, buffer: bool) -> Sample:
    # One LSTM layer of 4 hidden units on 3 steps of 2 sequences with 4 features. cuDNN's weight_buf stands
    # between weight_stride0 and hx, its proj_size after hidden_size; MIOpen has neither.
    weights = [v.normal(16, 4), v.normal(16, 4), v.normal(16), v.normal(16)]
    before, after = ((4, None), (4, 0)) if buffer else ((4,), (4,))
    state = v.normal(1, 2, 4), v.normal(1, 2, 4)
    sample = _of(v.normal(3, 2, 4), weights, *before, *state, 2, *after, 1, False, 0.0, False, False, [], None)
    return sample.without(3, 4, reason="the reserve, which only training fills, and the flat weights with its gaps")


PRODUCTS: dict[str, Build] = {
    "_addmm_activation": lambda v: _of(v.normal(5), v.normal(3, 4), v.normal(4, 5), use_gelu=True),
    "addbmm": lambda v: _of(v.normal(3, 5), v.normal(2, 3, 4), v.normal(2, 4, 5), beta=0.7, alpha=1.3),
    "addmm": lambda v: _of(v.normal(3, 5), v.normal(3, 4), v.normal(4, 5), beta=0.7, alpha=1.3),
    "addmv": lambda v: _of(v.normal(3), v.normal(3, 4), v.normal(4)),
    "addr": lambda v: _of(v.normal(3, 4), v.normal(3), v.normal(4)),
    "baddbmm": lambda v: _of(v.normal(2, 3, 5), v.normal(2, 3, 4), v.normal(2, 4, 5)),
    "bilinear": lambda v: _of(v.normal(3, 4), v.normal(3, 5), v.normal(6, 4, 5), v.normal(6)),
    "bmm": lambda v: _of(v.normal(2, 3, 4), v.normal(2, 4, 5)),
    "chain_matmul": lambda v: _of([v.normal(3, 4), v.normal(4, 5), v.normal(5, 2)]),
    "dot": lambda v: _of(v.normal(7), v.normal(7)),
    "einsum": lambda v: _of("bij,bjk->bik", [v.normal(2, 3, 4), v.normal(2, 4, 5)]),
    "linalg_multi_dot": lambda v: _of([v.normal(3, 4), v.normal(4, 5), v.normal(5, 2)]),
    "linalg_vecdot": lambda v: _of(v.normal(3, 4), v.normal(3, 4)),
    "linear": lambda v: [_of(v.normal(3, 4), v.normal(5, 4), v.normal(5)), _of(v.normal(2, 3, 4), v.normal(5, 4))],
    "matmul": lambda v: [_of(v.normal(3, 4), v.normal(4, 5)), _of(v.normal(2, 3, 4), v.normal(4))],
    "mm": lambda v: _of(v.normal(3, 4), v.normal(4, 5)),
    "mv": lambda v: _of(v.normal(3, 4), v.normal(4)),
    "prelu": lambda v: _of(v.normal(3, 4), v.uniform(4)),
    "tensordot": lambda v: _of(v.normal(2, 3, 4), v.normal(4, 3, 2), [2, 1], [0, 1]),
    "vdot": lambda v: _of(v.normal(7), v.normal(7)),
    # Convolutions. The trailing arguments of _convolution are benchmark, deterministic, cudnn_enabled, allow_tf32.
    "_convolution": lambda v: _of(
        *(v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), v.normal(4), [1, 1], [1, 1], [1, 1]),
        *(False, [0, 0], 1, False, True, True, False),
    ),
    "_convolution.deprecated": lambda v: _of(
        *(v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), v.normal(4), [1, 1], [1, 1], [1, 1]),
        *(False, [0, 0], 1, False, True, True),
    ),
    "_mps_convolution": lambda v: _of(
        v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), v.normal(4), [1, 1], [1, 1], [1, 1], 1
    ),
    "conv1d": lambda v: _of(v.normal(2, 3, 8), v.normal(4, 3, 3), v.normal(4), [2]),
    "conv1d.padding": lambda v: _of(v.normal(2, 3, 8), v.normal(4, 3, 3), v.normal(4), [1], "same"),
    "conv2d": lambda v: [
        _of(v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), v.normal(4)),
        _of(v.normal(2, 4, 6, 6), v.normal(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 4),
    ],
    "conv2d.padding": lambda v: _of(v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), v.normal(4), [1, 1], "same"),
    "conv3d": lambda v: _of(v.normal(1, 2, 4, 4, 4), v.normal(3, 2, 2, 2, 2), v.normal(3)),
    "conv3d.padding": lambda v: _of(v.normal(1, 2, 4, 4, 4), v.normal(3, 2, 3, 3, 3), v.normal(3), [1, 1, 1], "same"),
    "conv_tbc": lambda v: _of(v.normal(7, 2, 3), v.normal(3, 3, 5), v.normal(5), 1),
    "conv_transpose1d": lambda v: _of(v.normal(2, 3, 6), v.normal(3, 4, 3), v.normal(4)),
    "conv_transpose2d.input": lambda v: _of(v.normal(2, 3, 5, 5), v.normal(3, 4, 3, 3), v.normal(4)),
    "conv_transpose3d.input": lambda v: _of(v.normal(1, 2, 3, 3, 3), v.normal(2, 3, 2, 2, 2), v.normal(3)),
    "convolution": lambda v: _of(
        *(v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), v.normal(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    ),
    "cudnn_convolution": lambda v: _of(
        *(v.normal(2, 3, 6, 6), v.normal(4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1, False, True, False)
    ),
    "cudnn_convolution_transpose": lambda v: _of(
        *(v.normal(2, 3, 5, 5), v.normal(3, 4, 3, 3), [0, 0], [0, 0], [1, 1], [1, 1], 1, False, True, False)
    ),
    # Attention
    "_native_multi_head_attention": _multi_head_attention,
    "_scaled_dot_product_flash_attention": _flash_attention,
    "scaled_dot_product_attention": _attention,
    # Recurrent cells and layers
    "_cudnn_rnn": lambda v: _vendor_rnn(v, buffer=True),
    "_thnn_fused_gru_cell": lambda v: _of(v.normal(4, 24), v.normal(4, 24), v.normal(4, 8), v.normal(24), v.normal(24)),
    "_thnn_fused_lstm_cell": lambda v: _of(
        *(v.normal(4, 32), v.normal(4, 32), v.normal(4, 8), v.normal(32), v.normal(32))
    ),
    "gru_cell": lambda v: _of(v.normal(2, 3), v.normal(2, 4), *_cell(v, gates=3)),
    "lstm_cell": lambda v: _of(v.normal(2, 3), [v.normal(2, 4), v.normal(2, 4)], *_cell(v, gates=4)),
    "miopen_rnn": lambda v: _vendor_rnn(v, buffer=False),
    "mkldnn_rnn_layer": _mkldnn_rnn_layer,
    "rnn_relu_cell": lambda v: _of(v.normal(2, 3), v.normal(2, 4), *_cell(v, gates=1)),
    "rnn_tanh_cell": lambda v: _of(v.normal(2, 3), v.normal(2, 4), *_cell(v, gates=1)),
}
