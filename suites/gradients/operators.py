"""Operators that models are made of, each as a case: the result, and the gradient of each argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases import Case

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """Function of float32 tensors of these shapes; the results of products reach it in the autocast dtype."""

    function: Callable[..., Tensor]
    shapes: tuple[Shape, ...]


def case_of(name: str, operator: Operator) -> Case:
    """Return ``operator`` as a case: the loss weighs its elements differently, so that no gradient is constant."""

    def batch() -> list[Tensor]:
        return [torch.randn(shape, requires_grad=True) for shape in operator.shapes]

    def loss(_model: nn.Module, tensors: list[Tensor]) -> dict[str, Tensor]:
        output = operator.function(*tensors)
        promoted = output.to(torch.promote_types(output.dtype, torch.float32))
        weights = torch.linspace(-1, 1, output.numel(), dtype=promoted.dtype, device=promoted.device).view_as(promoted)
        return {"loss": (promoted * weights).sum(), "result": output}

    return Case(name, nn.Identity, batch, loss)


def low(function: Callable[[Tensor], Tensor]) -> Operator:
    """Return ``function`` of the product of two matrices."""
    return Operator(lambda a, b: function(a @ b), ((16, 24), (24, 32)))


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.arange(12, device=q.device).view(1, 1, 1, 12) < torch.tensor([12, 5], device=q.device).view(2, 1, 1, 1)
    return f.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return an additive mask like ALiBi's, in the model's own dtype."""
    steps = torch.arange(12, device=q.device, dtype=q.dtype)
    return f.scaled_dot_product_attention(q, k, v, attn_mask=(steps[None] - steps[:, None]) / 4)


def normalized(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean, variance = torch.zeros_like(weight.detach()), torch.ones_like(weight.detach())
    return f.batch_norm(x, mean, variance, weight, bias, training=True)


def classes(rows: int, count: int, like: Tensor) -> Tensor:
    return torch.arange(rows, device=like.device) * 7 % count


def product(a: Tensor, b: Tensor) -> Tensor:
    result: Tensor = a @ b
    return result


ATTENTION: tuple[Shape, ...] = ((2, 2, 12, 16),) * 3
IMAGES: tuple[Shape, ...] = ((2, 8, 9, 9), (12, 8, 3, 3), (12,))
LOGITS: tuple[Shape, ...] = ((16, 24), (24, 40))

#: Elementwise functions, and normalisations, of a product.
ACTIVATIONS = {
    "gelu": low(f.gelu),
    "gelu_tanh": low(lambda x: f.gelu(x, approximate="tanh")),
    "silu": low(f.silu),
    "mish": low(f.mish),
    "tanh": low(torch.tanh),
    "sigmoid": low(torch.sigmoid),
    "softplus": low(f.softplus),
    "elu": low(f.elu),
    "hardswish": low(f.hardswish),
    "leaky_relu": low(f.leaky_relu),
    "glu": low(f.glu),
    "prelu": Operator(lambda a, b, c: f.prelu(a @ b, c), ((16, 24), (24, 32), (32,))),
    "exp": low(lambda x: (x / 8).exp()),
    "log": low(lambda x: (x.square() + 1).log()),
    "rsqrt": low(lambda x: (x.square() + 1).rsqrt()),
    "power": low(lambda x: (x / 4) ** 3),
    "softmax": low(lambda x: x.softmax(-1)),
    "log_softmax": low(lambda x: x.log_softmax(-1)),
    "logsumexp": low(lambda x: x.logsumexp(-1)),
    "cumsum": low(lambda x: x.cumsum(-1)),
    "sum": low(lambda x: x.sum(-1)),
    "mean": low(lambda x: x.mean(-1)),
    "variance": low(lambda x: x.var(-1)),
    "norm": low(lambda x: x.norm(dim=-1)),
    "normalize": low(lambda x: f.normalize(x, dim=-1)),
    "clamp": low(lambda x: x.clamp(-2, 2)),
    "layer_norm_of_low": Operator(
        lambda a, b, w, c: f.layer_norm(a @ b, (32,), w, c), ((16, 24), (24, 32), (32,), (32,))
    ),
    "rms_norm": Operator(lambda a, b, w: f.rms_norm(a @ b, (32,), w), ((16, 24), (24, 32), (32,))),
    "group_norm": Operator(lambda a, b, w, c: f.group_norm(a @ b, 4, w, c), ((16, 24), (24, 32), (32,), (32,))),
    "batch_norm": Operator(lambda a, b, w, c: normalized(a @ b, w, c), ((16, 24), (24, 32), (32,), (32,))),
    "instance_norm": Operator(lambda x, w, b: f.instance_norm(f.conv2d(x, w, b)), IMAGES),
}

#: Products, and the operators composed of them: attention, convolutions and recurrent cells.
PRODUCTS = {
    "linear": Operator(f.linear, ((16, 24), (32, 24), (32,))),
    "linear_without_bias": Operator(f.linear, ((16, 24), (32, 24))),
    "matmul": Operator(product, ((2, 3, 8, 24), (24, 16))),
    "bmm": Operator(torch.bmm, ((3, 8, 24), (3, 24, 16))),
    "addmm": Operator(torch.addmm, ((16,), (8, 24), (24, 16))),
    "baddbmm": Operator(torch.baddbmm, ((3, 8, 16), (3, 8, 24), (3, 24, 16))),
    "einsum": Operator(lambda a, b: torch.einsum("bik,bjk->bij", a, b), ((3, 8, 24), (3, 16, 24))),
    "bilinear": Operator(f.bilinear, ((8, 12), (8, 10), (16, 12, 10), (16,))),
    "cdist": Operator(torch.cdist, ((8, 24), (16, 24))),
    "cosine_similarity": Operator(lambda a, b, c: f.cosine_similarity(a @ b, c), ((16, 24), (24, 32), (16, 32))),
    "conv1d": Operator(f.conv1d, ((4, 8, 16), (12, 8, 3), (12,))),
    "conv2d": Operator(f.conv2d, IMAGES),
    "conv2d_without_bias": Operator(f.conv2d, IMAGES[:2]),
    "conv2d_strided": Operator(lambda x, w, b: f.conv2d(x, w, b, stride=2, padding=1), IMAGES),
    "conv2d_in_groups": Operator(lambda x, w, b: f.conv2d(x, w, b, groups=4), ((2, 8, 9, 9), (12, 2, 3, 3), (12,))),
    "conv2d_depthwise": Operator(lambda x, w: f.conv2d(x, w, groups=8, padding=1), ((2, 8, 9, 9), (8, 1, 3, 3))),
    "conv3d": Operator(f.conv3d, ((2, 4, 6, 6, 6), (8, 4, 3, 3, 3), (8,))),
    "conv_transpose2d": Operator(
        lambda x, w, b: f.conv_transpose2d(x, w, b, stride=2), ((2, 8, 5, 5), (8, 6, 3, 3), (6,))
    ),
    "attention": Operator(f.scaled_dot_product_attention, ATTENTION),
    "attention_causal": Operator(lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True), ATTENTION),
    "attention_masked": Operator(masked, ATTENTION),
    "attention_shifted": Operator(shifted, ATTENTION),
    "attention_scaled": Operator(lambda q, k, v: f.scaled_dot_product_attention(q, k, v, scale=0.5), ATTENTION),
    "attention_by_hand": Operator(lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v, ATTENTION),
    "average_pool": Operator(lambda x, w, b: f.avg_pool2d(f.conv2d(x, w, b), 2), IMAGES),
    "max_pool": Operator(lambda x, w, b: f.max_pool2d(f.conv2d(x, w, b), 2), IMAGES),
    "interpolate": Operator(
        lambda x, w, b: f.interpolate(f.conv2d(x, w, b), scale_factor=2, mode="bilinear", align_corners=False), IMAGES
    ),
    "pad_reflected": Operator(lambda x, w, b: f.pad(f.conv2d(x, w, b), (1, 2, 2, 1), mode="reflect"), IMAGES),
    "embedding": Operator(lambda w, h: f.embedding(classes(40, 9, w), w) @ h, ((9, 16), (16, 24))),
    "gather": low(lambda x: x.gather(1, classes(16, 32, x)[:, None].expand(16, 4))),
    "cat_of_both_dtypes": Operator(lambda a, b, c: torch.cat([a @ b, c]), ((16, 24), (24, 32), (8, 32))),
    "stack_of_both_dtypes": Operator(lambda a, b, c: torch.stack([a @ b, c]), ((16, 24), (24, 32), (16, 32))),
    "sum_of_both_dtypes": Operator(lambda a, b, c: a @ b + c, ((16, 24), (24, 32), (16, 32))),
    "where_of_both_dtypes": Operator(lambda a, b, c: torch.where(c > 0, a @ b, c), ((16, 24), (24, 32), (16, 32))),
}

#: Losses of a product.
LOSSES = {
    "cross_entropy": Operator(lambda a, b: f.cross_entropy(a @ b, classes(16, 40, a)), LOGITS),
    "cross_entropy_smoothed": Operator(
        lambda a, b: f.cross_entropy(a @ b, classes(16, 40, a), label_smoothing=0.1), LOGITS
    ),
    "cross_entropy_each": Operator(lambda a, b: f.cross_entropy(a @ b, classes(16, 40, a), reduction="none"), LOGITS),
    "cross_entropy_of_shares": Operator(lambda a, b, c: f.cross_entropy(a @ b, c.softmax(-1)), (*LOGITS, (16, 40))),
    "nll": Operator(lambda a, b: f.nll_loss((a @ b).log_softmax(-1), classes(16, 40, a)), LOGITS),
    "mse": Operator(lambda a, b, c: f.mse_loss(a @ b, c), (*LOGITS, (16, 40))),
    "l1": Operator(lambda a, b, c: f.l1_loss(a @ b, c), (*LOGITS, (16, 40))),
    "smooth_l1": Operator(lambda a, b, c: f.smooth_l1_loss(a @ b, c), (*LOGITS, (16, 40))),
    "huber": Operator(lambda a, b, c: f.huber_loss(a @ b, c, delta=math.pi), (*LOGITS, (16, 40))),
    "binary_cross_entropy_with_logits": Operator(
        lambda a, b, c: f.binary_cross_entropy_with_logits(a @ b, c.sigmoid()), (*LOGITS, (16, 40))
    ),
    "kl_div": Operator(
        lambda a, b, c: f.kl_div((a @ b).log_softmax(-1), c.softmax(-1), reduction="batchmean"), (*LOGITS, (16, 40))
    ),
    # Margins without pairs nearby: rounding would select the branch of such a pair (seed 21, with the default margin).
    "cosine_embedding": Operator(
        lambda a, b, c: f.cosine_embedding_loss(a @ b, c, classes(16, 2, a) * 2 - 1, margin=-0.9), (*LOGITS, (16, 40))
    ),
    "triplet_margin": Operator(
        lambda a, b, c, d: f.triplet_margin_loss(a @ b, c, d, margin=10.0), (*LOGITS, (16, 40), (16, 40))
    ),
    "soft_margin": Operator(lambda a, b, c: f.soft_margin_loss(a @ b, c.detach().sign()), (*LOGITS, (16, 40))),
    "poisson_nll": Operator(lambda a, b, c: f.poisson_nll_loss(a @ b / 8, c.square()), (*LOGITS, (16, 40))),
}

OPERATORS = {**ACTIVATIONS, **PRODUCTS, **LOSSES}
