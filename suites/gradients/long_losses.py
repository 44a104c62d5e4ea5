"""Losses of low-precision logits and float32 targets, with each reduction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as f


def _cosine_embedding(x: Tensor, y: Tensor, reduction: str) -> Tensor:
    """Compute a cosine embedding loss without pairs near the margin, where rounding would select the branch."""
    return f.cosine_embedding_loss(x, y, y.detach()[:, 0].sign(), margin=-0.9, reduction=reduction)


def _classes(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 7 % x.shape[1]


def _shares(y: Tensor) -> Tensor:
    return y.softmax(-1)


def _weight(y: Tensor) -> Tensor:
    """Return one weight for each class."""
    return y.detach()[0].abs() + 0.5


def _as_images(x: Tensor, reduction: str) -> Tensor:
    """Compute a cross-entropy whose classes are not the last dimension."""
    pixels = x.view(4, 16, -1, x.shape[1])
    targets = torch.arange(pixels[:, 0].numel(), device=x.device).view_as(pixels[:, 0]) % 16
    return f.cross_entropy(pixels, targets, reduction=reduction)


_Loss = Callable[[Tensor, Tensor, str], Tensor]

#: Losses of low-precision logits and float32 targets.
LOSSES: dict[str, _Loss] = {
    "cross_entropy": lambda x, _, r: f.cross_entropy(x, _classes(x), reduction=r),
    "cross_entropy_smoothed": lambda x, _, r: f.cross_entropy(x, _classes(x), label_smoothing=0.1, reduction=r),
    "cross_entropy_ignoring": lambda x, _, r: f.cross_entropy(x, _classes(x), ignore_index=3, reduction=r),
    "cross_entropy_weighted": lambda x, y, r: f.cross_entropy(x, _classes(x), weight=_weight(y), reduction=r),
    "cross_entropy_of_shares": lambda x, y, r: f.cross_entropy(x, _shares(y), reduction=r),
    "cross_entropy_of_images": lambda x, _, r: _as_images(x, r),
    "nll": lambda x, _, r: f.nll_loss(x.float().log_softmax(-1), _classes(x), reduction=r),
    "mse": lambda x, y, r: f.mse_loss(x, y, reduction=r),
    "l1": lambda x, y, r: f.l1_loss(x, y, reduction=r),
    "smooth_l1": lambda x, y, r: f.smooth_l1_loss(x, y, reduction=r),
    "huber": lambda x, y, r: f.huber_loss(x, y, delta=0.7, reduction=r),
    "binary_cross_entropy_with_logits": lambda x, y, r: f.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r),
    "binary_cross_entropy_with_pos_weight": lambda x, y, r: f.binary_cross_entropy_with_logits(
        x, y.sigmoid(), pos_weight=_weight(y), reduction=r
    ),
    "kl_div": lambda x, y, r: f.kl_div(x.float().log_softmax(-1), _shares(y), reduction=r),
    "poisson_nll": lambda x, y, r: f.poisson_nll_loss(x / 4, y.square(), reduction=r),
    "gaussian_nll": lambda x, y, r: f.gaussian_nll_loss(x, y, y.detach().square() + 0.5, reduction=r),
    "soft_margin": lambda x, y, r: f.soft_margin_loss(x, y.detach().sign(), reduction=r),
    "hinge_embedding": lambda x, y, r: f.hinge_embedding_loss(x, y.detach().sign(), reduction=r),
    "margin_ranking": lambda x, y, r: f.margin_ranking_loss(x, y, y.detach().sign(), margin=0.1, reduction=r),
    "cosine_embedding": _cosine_embedding,
    "triplet_margin": lambda x, y, r: f.triplet_margin_loss(x, y, y.flip(0), margin=4.0, reduction=r),
    "multi_margin": lambda x, _, r: f.multi_margin_loss(x, _classes(x), reduction=r),
}  # fmt: skip
