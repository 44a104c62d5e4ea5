"""Samples of loss functions and of distances."""

# ruff: noqa: FBT003  # operators take booleans by position
from __future__ import annotations

from pytest_amp.rules.samples.sample import Build, Sample, Values

_of = Sample.of


def _two(v: Values) -> Sample:
    return _of(v.normal(4, 5), v.normal(4, 5))


def _log_probabilities(v: Values, *shape: int) -> object:
    return v.normal(*shape).log_softmax(-1 if len(shape) < 4 else 1)


LOSSES: dict[str, Build] = {
    "binary_cross_entropy": lambda v: _of(v.uniform(4, 5), v.uniform(4, 5), v.uniform(4, 5)),
    "binary_cross_entropy_with_logits": lambda v: _of(
        *(v.normal(4, 5), v.uniform(4, 5), v.uniform(4, 5), v.uniform(5))
    ),
    "cosine_embedding_loss": lambda v: _of(v.normal(4, 5), v.normal(4, 5), v.signs(4), 0.1),
    "cross_entropy_loss": lambda v: [
        _of(v.normal(4, 5), v.integers(5, 4), v.uniform(5)),
        _of(v.normal(4, 5), v.normal(4, 5).softmax(-1)),
    ],
    "ctc_loss.IntList": lambda v: _of(_log_probabilities(v, 9, 2, 5), 1 + v.integers(4, 2, 3), [9, 9], [3, 3]),
    "ctc_loss.Tensor": lambda v: _of(
        *(_log_probabilities(v, 9, 2, 5), 1 + v.integers(4, 2, 3), v.integers(1, 2) + 9, v.integers(1, 2) + 3)
    ),
    "hinge_embedding_loss": lambda v: _of(v.normal(4, 5), v.signs(4, 5)),
    "huber_loss": _two,
    "kl_div": lambda v: _of(_log_probabilities(v, 4, 5), v.normal(4, 5).softmax(-1)),
    "l1_loss": _two,
    "margin_ranking_loss": lambda v: _of(v.normal(6), v.normal(6), v.signs(6), 0.1),
    "mse_loss": _two,
    "multi_margin_loss": lambda v: _of(v.normal(4, 5), v.integers(5, 4), 1, 1, v.uniform(5)),
    "multilabel_margin_loss": lambda v: _of(v.normal(4, 5), v.integers(5, 4, 5)),
    "multilabel_margin_loss_forward": lambda v: _of(v.normal(4, 5), v.integers(5, 4, 5), 1),
    "nll_loss": lambda v: _of(_log_probabilities(v, 4, 5), v.integers(5, 4), v.uniform(5)),
    "nll_loss2d": lambda v: _of(_log_probabilities(v, 2, 5, 3, 3), v.integers(5, 2, 3, 3), v.uniform(5)),
    "poisson_nll_loss": lambda v: _of(v.normal(4, 5), v.uniform(4, 5, high=3.0), True, False, 1e-8, 1),
    "smooth_l1_loss": _two,
    "soft_margin_loss": lambda v: _of(v.normal(4, 5), v.signs(4, 5)),
    "triplet_margin_loss": lambda v: _of(v.normal(4, 5), v.normal(4, 5), v.normal(4, 5), 1.0),
    # Distances
    "cdist": lambda v: _of(v.normal(5, 4), v.normal(3, 4)),
    "cosine_similarity": _two,
    "cross": lambda v: _of(v.normal(4, 3), v.normal(4, 3), 1),
    "dist": _two,
    "pdist": lambda v: _of(v.normal(5, 4)),
}
