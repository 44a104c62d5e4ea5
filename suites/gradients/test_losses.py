"""Losses of low-precision logits, with every reduction: float32 if the device has the rule, else 1 or 2 roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import exceeds, relative_error
from pytest_amp.precision import FP32
from pytest_amp.rules.spec import RuleName, expected

ROWS, CLASSES = 64, 24


@dataclass(frozen=True)
class Loss:
    """Loss of logits (float64 or low) and normal values of one shape, and the operator that decides its dtype."""

    function: Callable[[Tensor, Tensor, str], Tensor]
    operator: str
    shape: tuple[int, ...] = (ROWS, CLASSES)


def classes(x: Tensor) -> Tensor:
    return (torch.arange(x.numel() // x.shape[1], device=x.device) % x.shape[1]).reshape(x.shape[0], *x.shape[2:])


def weights(x: Tensor) -> Tensor:
    """Return one weight for each class, in steps that every dtype represents."""
    return 1 + torch.arange(x.shape[1], device=x.device).remainder(4).to(x.dtype) / 4


LOSSES = {
    "cross_entropy": Loss(lambda x, _, r: f.cross_entropy(x, classes(x), reduction=r), "cross_entropy_loss"),
    "cross_entropy_of_images": Loss(
        lambda x, _, r: f.cross_entropy(x, classes(x), reduction=r), "cross_entropy_loss", (4, CLASSES, 3, 3)
    ),
    "cross_entropy_ignoring": Loss(
        lambda x, _, r: f.cross_entropy(x, classes(x), ignore_index=3, reduction=r), "cross_entropy_loss"
    ),
    "cross_entropy_smoothed": Loss(
        lambda x, _, r: f.cross_entropy(x, classes(x), label_smoothing=0.1, reduction=r), "cross_entropy_loss"
    ),
    "cross_entropy_weighted": Loss(
        lambda x, _, r: f.cross_entropy(x, classes(x), weight=weights(x), reduction=r),
        "cross_entropy_loss",
    ),
    "mse": Loss(lambda x, y, r: f.mse_loss(x, y, reduction=r), "mse_loss"),
    "l1": Loss(lambda x, y, r: f.l1_loss(x, y, reduction=r), "l1_loss"),
    "smooth_l1": Loss(lambda x, y, r: f.smooth_l1_loss(x, y, reduction=r), "smooth_l1_loss"),
    "huber": Loss(lambda x, y, r: f.huber_loss(x, y, delta=0.5, reduction=r), "huber_loss"),
    "binary_cross_entropy_with_logits": Loss(
        lambda x, y, r: f.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r),
        "binary_cross_entropy_with_logits",
    ),
    "binary_cross_entropy_with_logits_weighted": Loss(
        lambda x, y, r: f.binary_cross_entropy_with_logits(
            x, y.sigmoid(), weight=y.abs(), pos_weight=weights(y), reduction=r
        ),
        "binary_cross_entropy_with_logits",
    ),
    "kl_div": Loss(lambda x, y, r: f.kl_div(x, y.softmax(1), reduction=r), "kl_div"),
    "nll": Loss(lambda x, _, r: f.nll_loss(x, classes(x), reduction=r), "nll_loss"),
    "poisson_nll": Loss(lambda x, y, r: f.poisson_nll_loss(x, y.square(), reduction=r), "poisson_nll_loss"),
    "soft_margin": Loss(lambda x, y, r: f.soft_margin_loss(x, y.sign(), reduction=r), "soft_margin_loss"),
    "cosine_embedding": Loss(
        lambda x, y, r: f.cosine_embedding_loss(x, y, y[:, 0].sign(), reduction=r), "cosine_embedding_loss"
    ),
    "margin_ranking": Loss(
        lambda x, y, r: f.margin_ranking_loss(x, y, y.sign(), margin=0.1, reduction=r), "margin_ranking_loss"
    ),
    "triplet_margin": Loss(
        lambda x, y, r: f.triplet_margin_loss(x, y, y.flip(0), reduction=r), "triplet_margin_loss"
    ),
    "hinge_embedding": Loss(
        lambda x, y, r: f.hinge_embedding_loss(x, y.sign(), reduction=r), "hinge_embedding_loss"
    ),
    "multi_margin": Loss(lambda x, _, r: f.multi_margin_loss(x, classes(x), reduction=r), "multi_margin_loss"),
}  # fmt: skip

#: Sums of some thousand terms and logarithms near 1 in float32: measured 0 to 4.6 u (CPU, torch 2.13, 4 seeds).
FEW = 32


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # kl_div's advice to its users
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_as_exact_as_its_rule(amp: SuiteAmp, name: str, reduction: str) -> None:
    """Compare with float64 on the same low-precision values, so that all of the error comes from the loss itself."""
    loss, low = LOSSES[name], amp.dtype
    returned = {}

    def measured() -> dict[str, float]:
        logits, targets = torch.randn(loss.shape).to(low), torch.randn(loss.shape)
        exact = loss.function(logits.double(), targets.double(), reduction)
        with amp.autocast():
            result = loss.function(logits.to(amp.device.torch_device), targets.to(amp.device.torch_device), reduction)
        returned[reduction] = result.dtype
        return {reduction: relative_error(result, exact)}

    errors, over_seeds = amp.over_seeds(measured)
    error, dtype = errors[reduction], returned[reduction]
    rule = expected(amp.device.type, torch.__version__).get(f"aten::{loss.operator}")
    is_fp32 = rule is not None and rule.name is RuleName.FP32
    allowed = (FEW * FP32.u if is_fp32 else 2 * amp.precision.u) * amp.config.tolerance_scale
    again = over_seeds.get(reduction)
    amp.observe(f"{name}/{reduction}", error, kind="error", unit="relative L2", allowed=allowed, over_seeds=again)
    if exceeds(error, allowed) or (is_fp32 and dtype is not torch.float32):
        raise AmpFailure(
            f"{name}, reduction {reduction}, under {amp.target.id} has an error of {error:.3g}, "
            f"more than the allowed {allowed:.3g}",
            label_before="exact",
            before=f"float64 on the same values; {loss.operator} is {'an' if is_fp32 else 'not an'} fp32 operator",
            now=f"{dtype}, torch {torch.__version__}, {amp.device.describe()}",
            likely="the loss is computed or accumulated in the low dtype",
        )
