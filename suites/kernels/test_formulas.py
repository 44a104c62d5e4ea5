"""Operators agree with their formulas in float64, which also detects errors that all dtypes share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error

from ..gradients.expectations import expect_near

Formula = Callable[..., Tensor]


@dataclass(frozen=True)
class Pair:
    """Operator, its formula in elementary functions, and the shapes of the arguments."""

    operator: Formula
    formula: Formula
    shapes: tuple[tuple[int, ...], ...]


def attention(*, scale: float = 0.25, causal: bool = False, keys: int | None = None) -> Formula:
    """Return softmax(q k' scale) v over the first ``keys`` keys, or, if causal, over the keys up to the query."""

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        if causal:
            hidden = torch.ones_like(hidden).triu(1)
        if keys is not None:
            hidden[..., keys:] = True
        weights = torch.where(hidden, torch.zeros_like(scores), scores.exp())
        return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), v)

    return formula


def first_five(k: Tensor) -> Tensor:
    return torch.arange(k.shape[-2], device=k.device) < 5


def gelu(x: Tensor) -> Tensor:
    share: Tensor = torch.special.erf(x / math.sqrt(2))
    return x * (1 + share) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(0)
    return centred / (centred.square().mean(0) + 1e-5).sqrt() * weight + bias


def conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    windows = x.unfold(2, 3, 1).unfold(3, 3, 1)
    return torch.einsum("bchwij,ocij->bohw", windows, weight) + bias[:, None, None]


def embedding(weight: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(rows(weight), weight.shape[0]).to(weight.dtype) @ weight


def rows(weight: Tensor) -> Tensor:
    return torch.arange(24, device=weight.device) * 5 % weight.shape[0]


def targets(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 3 % x.shape[1]


#: Indices at which rows are added, several at each.
PLACES = 7


def places(y: Tensor) -> Tensor:
    return torch.arange(y.shape[0], device=y.device) * 5 % PLACES


def index_add(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return y.new_zeros(PLACES, y.shape[1]).index_add(0, places(y), y)


def scatter_add(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return y.new_zeros(PLACES, y.shape[1]).scatter_add(0, places(y)[:, None].expand_as(y), y)


def added(x: Tensor, w: Tensor) -> Tensor:
    """Add rows of a product at their indices."""
    return torch.nn.functional.one_hot(places(x), PLACES).to(x.dtype).mT @ (x @ w)


def index_select(x: Tensor, w: Tensor) -> Tensor:
    y = x[:PLACES] @ w
    return y.index_select(0, places(x))


def selected(x: Tensor, w: Tensor) -> Tensor:
    """Select rows of a product, each several times: backward adds their gradients."""
    return torch.nn.functional.one_hot(places(x), PLACES).to(x.dtype) @ (x[:PLACES] @ w)


def products(factors: Tensor) -> Tensor:
    """Return the cumulative products of each row."""
    actual = [factors[:, 0]]
    for factor in factors.unbind(1)[1:]:
        actual.append(actual[-1] * factor)
    return torch.stack(actual, 1)


def near_one(x: Tensor) -> Tensor:
    return 1 + x / 16


def one_is_zero(x: Tensor) -> Tensor:
    """Set a different element of each row to zero; it has a gradient."""
    factors = near_one(x)
    return factors - factors.detach() * torch.eye(*x.shape, device=x.device, dtype=x.dtype)


def cross_entropy(x: Tensor, smoothing: float = 0.0) -> Tensor:
    logs = x - x.exp().sum(-1, keepdim=True).log()
    hit = logs.gather(1, targets(x)[:, None]).squeeze(1)
    return -((1 - smoothing) * hit + smoothing * logs.mean(-1)).mean()


ATTENTION = ((2, 2, 9, 16),) * 3
#: Longer than a block of any kernel, of 32 queries and 512 keys at most.
LONG_ATTENTION = ((1, 2, 600, 16),) * 3
NORM = ((24, 32), (32,), (32,))
PRODUCT = ((24, 32), (32, 16))

PAIRS = {
    "attention": Pair(f.scaled_dot_product_attention, attention(), ATTENTION),
    "attention_causal": Pair(
        lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True), attention(causal=True), ATTENTION
    ),
    "attention_long": Pair(f.scaled_dot_product_attention, attention(), LONG_ATTENTION),
    "attention_long_causal": Pair(
        lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True), attention(causal=True), LONG_ATTENTION
    ),
    "attention_masked": Pair(
        lambda q, k, v: f.scaled_dot_product_attention(q, k, v, attn_mask=first_five(k).view(1, 1, 1, -1)),
        attention(keys=5),
        ATTENTION,
    ),
    "attention_scaled": Pair(
        lambda q, k, v: f.scaled_dot_product_attention(q, k, v, scale=0.1), attention(scale=0.1), ATTENTION
    ),
    "linear": Pair(f.linear, lambda x, w, b: torch.einsum("bi,oi->bo", x, w) + b, ((24, 32), (16, 32), (16,))),
    "conv2d": Pair(f.conv2d, conv2d, ((3, 6, 8, 8), (10, 6, 3, 3), (10,))),
    "gelu": Pair(f.gelu, gelu, ((24, 32),)),
    "gelu_tanh": Pair(lambda x: f.gelu(x, approximate="tanh"), gelu_tanh, ((24, 32),)),
    "silu": Pair(f.silu, lambda x: x / (1 + (-x).exp()), ((24, 32),)),
    "softmax": Pair(lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), ((24, 32),)),
    "layer_norm": Pair(lambda x, w, b: f.layer_norm(x, (32,), w, b), layer_norm, NORM),
    "batch_norm": Pair(lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True), batch_norm, NORM),
    "embedding": Pair(lambda w: f.embedding(rows(w), w), embedding, ((7, 32),)),
    "index_add": Pair(index_add, added, PRODUCT),
    "scatter_add": Pair(scatter_add, added, PRODUCT),
    "index_select": Pair(index_select, selected, PRODUCT),
    "prod": Pair(lambda x: torch.prod(near_one(x), 1), lambda x: products(near_one(x))[:, -1], ((24, 32),)),
    "prod_of_all": Pair(
        lambda x: torch.prod(near_one(x)) * x, lambda x: products(near_one(x).view(1, -1))[:, -1] * x, ((24, 32),)
    ),
    "prod_with_a_zero": Pair(
        lambda x: torch.prod(one_is_zero(x), 1) + x[:, 0],
        lambda x: products(one_is_zero(x))[:, -1] + x[:, 0],
        ((24, 32),),
    ),
    "cumprod": Pair(lambda x: torch.cumprod(near_one(x), 1), lambda x: products(near_one(x)), ((24, 32),)),
    "cross_entropy": Pair(lambda x: f.cross_entropy(x, targets(x)), cross_entropy, ((24, 32),)),
    "cross_entropy_smoothed": Pair(
        lambda x: f.cross_entropy(x, targets(x), label_smoothing=0.1), lambda x: cross_entropy(x, 0.1), ((24, 32),)
    ),
    "mean_squared_error": Pair(f.mse_loss, lambda x, y: (x - y).square().mean(), ((24, 32), (24, 32))),
}

#: In units of u. If an operator rounds its arguments, its result and its saved tensors, each makes about u/2; measured
#: at most 1.6 (CPU, torch 2.13).
MOST = 4.0


@pytest.mark.parametrize("name", PAIRS)
def test_operator_is_its_formula(amp: SuiteAmp, name: str) -> None:
    """Compare result and gradients, on arguments that the low dtype represents."""
    pair, device = PAIRS[name], amp.device.torch_device
    returned = {}

    def measured() -> dict[str, float]:
        values = [torch.randn(shape).to(amp.dtype) for shape in pair.shapes]
        exact = [value.double().requires_grad_() for value in values]
        leaves = [value.to(device, torch.float32).requires_grad_() for value in values]
        expected = pair.formula(*exact)
        with amp.autocast():
            result = pair.operator(*leaves)
        gradient = torch.randn(expected.shape).to(amp.dtype)
        torch.autograd.backward(expected, gradient.double())
        torch.autograd.backward(result, gradient.to(device, result.dtype))
        errors = {"result": relative_error(result, expected)}
        for index, (a, b) in enumerate(zip(leaves, exact, strict=True)):
            assert a.grad is not None, f"argument {index} has no gradient"
            assert b.grad is not None
            errors[f"gradient.{index}"] = relative_error(a.grad, b.grad)
        returned["result"] = result.dtype
        return errors

    errors, over_seeds = amp.over_seeds(measured)
    allowed = MOST * amp.precision.u * amp.config.tolerance_scale
    expect_near(
        amp,
        f"formula.{name}",
        errors,
        dict.fromkeys(errors, allowed),
        over_seeds=over_seeds,
        measure=measured,
        dtypes=dict.fromkeys(errors, returned["result"]),
        exact="its formula",
        before="its formula in float64, from elementary functions",
        likely="the operator computes something else: a mask, a scale or a term of its gradient is lost",
    )


#: Ways to read rows of a tensor at indices.
READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: f.embedding(i, x),
    "embedding_bag": lambda x, i: f.embedding_bag(i.view(-1, 3), x, mode="sum"),
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, x.shape[1])),
    "take_along_dim": lambda x, i: x.take_along_dim(i[:, None].expand(-1, x.shape[1]), 0),
}


#: Number of reads, number of rows, and the incoming gradient of each value.
COUNTS = {"few": (12, 9, 1.0), "many": (3000, 9, 1.0), "of a large table": (1500, 3001, 1 + 2.0**-20)}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", READS)
def test_each_read_of_a_row_counts(amp: SuiteAmp, name: str, count: str) -> None:
    """Backward adds the gradient of a row once for each read; the sums are exact in float32."""
    device = amp.device.torch_device
    reads, table, divisors = COUNTS[count]
    x = torch.randn(table, 16, device=device, requires_grad=True)
    indices = torch.arange(reads, device=device) * 5 % table
    with amp.autocast():
        result = READS[name](x, indices)
    torch.autograd.backward(result, torch.full_like(result, divisors))
    assert x.grad is not None
    counted = torch.bincount(indices, minlength=table).float() * divisors
    assert torch.equal(x.grad, counted[:, None].expand_as(x)), (
        f"the gradient of a row does not count the reads of {name}"
    )
