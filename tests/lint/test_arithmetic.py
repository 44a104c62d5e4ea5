"""Arithmetic in a low dtype that should be float32, together with the correct form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.lint import Severity
from tests.lint.linted import HIDDEN, around, case, kinds, line_of, of_case


def layer_norm(x: Tensor) -> Tensor:
    centre = x.mean(1, keepdim=True)
    spread = (x - centre).pow(2).mean(1, keepdim=True)
    return (x - centre) / (spread + 1e-3).sqrt()


def layer_norm_float32(x: Tensor) -> Tensor:
    return layer_norm(x.float()).to(x.dtype)


def difference_of_squares(x: Tensor) -> Tensor:
    centre = x.mean(1, keepdim=True)
    spread = x.square().mean(1, keepdim=True) - centre.square()
    return (x - centre) / (spread.abs() + 1e-3).sqrt()


def difference_of_sums(x: Tensor) -> Tensor:
    centre, squares = x.sum(1, keepdim=True) / HIDDEN, x.pow(2).sum(1, keepdim=True) / HIDDEN
    spread = squares - centre**2
    return (x - centre) * torch.rsqrt(spread.clamp(min=0) + 1e-3)


def softmax(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.amax(1, keepdim=True))
    return powers / (powers.sum(1, keepdim=True) + 1e-3)


def running_sum(x: Tensor) -> Tensor:
    total = torch.zeros(len(x), dtype=x.dtype)
    for column in range(HIDDEN):
        total += x[:, column]
    return x + total[:, None]


def running_mean(x: Tensor) -> Tensor:
    mean = torch.zeros(len(x), dtype=x.dtype)
    for column in range(HIDDEN):
        mean = mean + (x[:, column] - mean) / (column + 1)
    return x - mean[:, None]


def running_sum_float32(x: Tensor) -> Tensor:
    total = torch.zeros(len(x))
    for column in range(HIDDEN):
        total += x[:, column]
    return x + total[:, None]


def positions(x: Tensor) -> Tensor:
    return torch.arange(5000, 5000 + len(x))[:, None]


def rotated(place: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies features by the cosine of ``place``."""
    return lambda x: x * place(x).cos().to(x.dtype)


def angles(x: Tensor) -> Tensor:
    return torch.arange(700, 700 + len(x))[:, None].to(x.dtype) * torch.linspace(0.1, 1, HIDDEN).to(x.dtype)


def angles_float32(x: Tensor) -> Tensor:
    return torch.arange(700, 700 + len(x))[:, None] * torch.linspace(0.1, 1, HIDDEN)


def exponent(x: Tensor) -> Tensor:
    return 1000.0 ** -(torch.arange(HIDDEN) / HIDDEN).to(x.dtype)


def softmax_in_place(x: Tensor) -> Tensor:
    powers = (x - x.amax(1, keepdim=True)).exp_()
    return powers / powers.sum(1, keepdim=True)


def rms_norm_in_place(x: Tensor) -> Tensor:
    squares = x.clone().pow_(2)
    return x / squares.mean(1, keepdim=True).add_(1e-3).sqrt_()


def selected(table: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that adds the elements of a long table at the indices ``table``."""
    return lambda x: x + torch.linspace(0, 1, 5000).to(x.dtype)[table(x)][:, None]


def indices(x: Tensor) -> Tensor:
    rows, columns = torch.arange(len(x)), torch.arange(len(x)) % 7
    return (rows.to(x.dtype) * 200 + columns.to(x.dtype)).long()


def lengths(x: Tensor) -> Tensor:
    present = torch.arange(4000) < torch.arange(3001, 3001 + len(x))[:, None]
    return present.to(x.dtype).sum(1).long()


def softmax_by_a_norm(x: Tensor) -> Tensor:
    return functional.normalize(torch.exp(x - x.amax(1, keepdim=True)), p=1, dim=1, eps=1e-3)


def weighted_mean(x: Tensor) -> Tensor:
    powers = torch.exp(x)
    return x + ((powers * x).sum(1) / powers.sum(1))[:, None]


def decaying_state(x: Tensor) -> Tensor:
    decay, state = torch.sigmoid(x + 3), torch.zeros_like(x[:, 0])
    for column in range(HIDDEN):
        state = decay[:, column] * state + x[:, column]
    return x + state[:, None] / HIDDEN


def gated_state(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[:, 0])
    for column in range(HIDDEN):
        gate = torch.sigmoid(x[:, column] + state)
        state = (1 - gate) * state + gate * torch.tanh(x[:, column])
    return x + state[:, None]


def transmittance(x: Tensor) -> Tensor:
    left, parts = torch.ones_like(x[:, 0]), []
    for column in range(HIDDEN):
        left = left * torch.sigmoid(x[:, column] + 4)
        parts.append(left)
    return torch.stack(parts, 1)


def summed_by_index(x: Tensor) -> Tensor:
    columns = torch.arange(HIDDEN) % 2
    return x + torch.zeros_like(x[:, :2]).index_add(1, columns, x)[:, columns] / HIDDEN


def sampled(x: Tensor) -> Tensor:
    """Return a sample of a normal distribution, divided by the sum of its magnitudes."""
    sample = x + torch.exp(0.5 * x) * torch.randn_like(x)
    return x / (sample.abs().sum(1, keepdim=True) + 1e-2)


def base_two(x: Tensor) -> Tensor:
    powers = 2 ** (x - x.amax(1, keepdim=True))
    return powers / (powers.sum(1, keepdim=True) + 1e-3)


def in_parts(x: Tensor) -> Tensor:
    x = x - x.amax(1, keepdim=True)
    return x.exp() / sum(part.exp().sum(1, keepdim=True) for part in x.chunk(3, 1))


def rounded_times(x: Tensor) -> Tensor:
    times = torch.linspace(0, 1, len(x)) * 999.7
    return times.to(x.dtype)[:, None] * torch.linspace(0.1, 1, HIDDEN)


def cross_entropy(probabilities: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):  # autocast refuses it on CUDA
        return functional.binary_cross_entropy(probabilities, torch.full_like(probabilities, 0.5), reduction="none")


PAIRS = {
    "layer norm": (layer_norm, layer_norm_float32, "low-norm"),
    "rms norm": (
        lambda x: x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-3),
        lambda x: x * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-3).to(x.dtype),
        "low-norm",
    ),
    "standard deviation": (
        lambda x: x / (x.std(1, keepdim=True) + 1e-2),
        lambda x: x / (x.float().std(1, keepdim=True) + 1e-2),
        "low-norm",
    ),
    "norm": (
        lambda x: x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + 1e-2),
        lambda x: x / (torch.linalg.vector_norm(x.float(), dim=1, keepdim=True) + 1e-2),
        "low-norm",
    ),
    "sum of squares as a product": (
        lambda x: x * torch.rsqrt(torch.einsum("ij,ij->i", x, x)[:, None] + 1e-2),
        lambda x: x * (x @ x.mT).mean(1, keepdim=True),
        "low-norm",
    ),
    "variance by a product": (
        lambda x: (
            x
            * (torch.einsum("ij,ij->i", x, x) / HIDDEN)
            .addcmul(x.mean(1), x.mean(1), value=-1)
            .add(1e-2)
            .rsqrt()[:, None]
        ),
        lambda x: x * (x.float().var(1, keepdim=True) + 1e-2).rsqrt(),
        "low-norm",
    ),
    "product of widened values": (
        lambda x: x * torch.rsqrt(torch.einsum("ij,ij->i", x.float(), x.float())[:, None] + 1e-2),
        lambda x: x * torch.rsqrt((x.float() * x.float()).sum(1, keepdim=True) + 1e-2),
        "low-norm",
    ),
    "variance by difference": (difference_of_squares, layer_norm_float32, "low-norm"),
    "variance by sums": (difference_of_sums, layer_norm_float32, "low-norm"),
    "root of a sum of squares": (
        lambda x: x / ((x * x).sum(1, keepdim=True).sqrt() + 1e-2),
        lambda x: x / ((x.float() * x.float()).sum(1, keepdim=True).sqrt() + 1e-2).to(x.dtype),
        "low-norm",
    ),
    "softmax": (softmax, lambda x: torch.softmax(x, 1), "low-softmax"),
    "softmax in place": (softmax_in_place, lambda x: softmax_in_place(x.float()).to(x.dtype), "low-softmax"),
    "rms norm in place": (rms_norm_in_place, lambda x: rms_norm_in_place(x.float()).to(x.dtype), "low-norm"),
    "indices": (
        selected(indices),
        selected(lambda x: torch.arange(len(x)) * 200 + torch.arange(len(x)) % 7),
        "rounded-positions",
    ),
    "lengths": (selected(lengths), selected(lambda x: lengths(x.float())), "rounded-positions"),
    "softmax by a norm": (softmax_by_a_norm, lambda x: torch.softmax(x.float(), 1), "low-softmax"),
    "softmax of base two": (base_two, lambda x: base_two(x.float()).to(x.dtype), "low-softmax"),
    "softmax in parts": (in_parts, lambda x: torch.softmax(x.float(), 1), "low-softmax"),
    "weighted mean": (weighted_mean, lambda x: weighted_mean(x.float()).to(x.dtype), "low-softmax"),
    "logsumexp": (
        lambda x: x - torch.logsumexp(x, 1, keepdim=True),
        lambda x: torch.log_softmax(x, 1),
        "low-softmax",
    ),
    "logarithm": (lambda x: x.sigmoid().log(), lambda x: functional.logsigmoid(x.float()), "low-log"),
    "logarithm of rounded probabilities": (
        lambda x: (1 - x.sigmoid() + 1e-3).float().log(),
        lambda x: functional.logsigmoid(-x.float()),
        "low-log",
    ),
    "cross entropy of rounded probabilities": (
        lambda x: cross_entropy(x.sigmoid().float()),
        lambda x: cross_entropy(x.float().sigmoid()),
        "low-log",
    ),
    "angles": (rotated(angles), rotated(angles_float32), "low-angles"),
    "rounded times": (rotated(rounded_times), rotated(lambda x: rounded_times(x.float())), "low-angles"),
    "rounded positions": (
        rotated(
            lambda x: torch.arange(5000, 5000 + len(x)).to(x.dtype).float()[:, None] * torch.linspace(0.1, 1, HIDDEN)
        ),
        rotated(angles_float32),
        "rounded-positions",
    ),
    "positions alone": (
        lambda x: x + torch.arange(5000, 5000 + len(x), dtype=x.dtype)[:, None] / 5000,
        lambda x: x + (positions(x) / 5000).to(x.dtype),
        "rounded-positions",
    ),
    "power": (lambda x: x * exponent(x), lambda x: x * exponent(x.float()).to(x.dtype), "low-power"),
    "running sum": (running_sum, running_sum_float32, "low-running-sum"),
    "sum of a list": (
        lambda x: x + sum(x[:, column, None] for column in range(HIDDEN)),
        lambda x: x + x.sum(1, keepdim=True),
        "low-running-sum",
    ),
    "decaying state": (decaying_state, lambda x: decaying_state(x.float()).to(x.dtype), "low-running-sum"),
    "transmittance": (transmittance, lambda x: transmittance(x.float()).to(x.dtype), "low-running-sum"),
    "sum by index": (summed_by_index, lambda x: summed_by_index(x.float()).to(x.dtype), "low-running-sum"),
    "running mean": (running_mean, lambda x: x - x.mean(1, keepdim=True), "low-running-sum"),
    "cumulative sum": (
        lambda x: torch.cumsum(x, 1) / HIDDEN,
        lambda x: torch.cumsum(x, 1, dtype=torch.float32) / HIDDEN,
        "low-running-sum",
    ),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", PAIRS)
def test_wrong_form_is_found(name: str, dtype: str) -> None:
    wrong, _, kind = PAIRS[name]
    actual = of_case(around(wrong), dtype)
    assert kind in kinds(actual)
    assert all(finding.site.startswith("tests/lint/test_arithmetic.py:") for finding in actual)
    assert all(finding.severity is Severity.WARNING for finding in actual)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", PAIRS)
def test_right_form_yields_no_finding(name: str, dtype: str) -> None:
    assert of_case(around(PAIRS[name][1]), dtype) == ()


def test_operators_of_one_function_are_one_finding_at_its_first_line() -> None:
    (finding,) = of_case(around(layer_norm))
    assert finding.site == f"tests/lint/test_arithmetic.py:{line_of(layer_norm, 1)}"
    assert "mean, difference from the mean" in finding.message
    assert "bfloat16" in finding.message
    assert finding.module == ""


@pytest.mark.parametrize("function", [difference_of_squares, difference_of_sums])
def test_cancellation_is_named_before_the_mean(function: Callable[[Tensor], Tensor]) -> None:
    (finding,) = of_case(around(function))
    assert finding.site.endswith(f":{line_of(function, 2)}")
    assert "cancel" in finding.message


def test_sum_of_squares_by_a_product_is_not_mended_by_widening() -> None:
    (finding,) = of_case(around(PAIRS["product of widened values"][0]))
    assert "autocast casts the operands of a product" in finding.advice


def test_square_beyond_float16_is_an_error() -> None:
    (finding,) = of_case(around(lambda x: x * torch.rsqrt((x * 3000).square().mean(1, keepdim=True) + 1e-3)), "fp16")
    assert finding.severity is Severity.ERROR
    assert "overflows" in finding.message


HEALTHY = {
    "centre": lambda x: x - x.mean(1, keepdim=True),
    "pooling": lambda x: x * x.mean(0),
    "small angles": torch.sin,
    "residual stream": lambda x: [x := x + torch.tanh(x) / 30 for _ in range(30)][-1],
    "gated state": gated_state,
    "sample of a normal distribution": sampled,
    "small counts": lambda x: x + x[(torch.ones_like(x).bool().to(x.dtype).sum(1) - HIDDEN).long()],
    "buckets": lambda x: x + torch.linspace(0, 1, 5000).to(x.dtype)[(x.sigmoid() * 4000).long()],
    "temperature": lambda x: x * torch.tensor(0.3).exp(),
    "product with itself": lambda x: (x @ x.mT) @ x / HIDDEN,
    "torch's normalize": lambda x: functional.normalize(x, dim=1) if x.dtype is torch.bfloat16 else x,
    "log_softmax": lambda x: x.log_softmax(1),
    "similarity": lambda x: functional.cosine_similarity(x, x.flip(0), eps=1e-4)[:, None] * x,
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_arithmetic_yields_no_finding(name: str, dtype: str) -> None:
    assert of_case(around(HEALTHY[name]), dtype) == ()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_torchs_own_modules_yield_no_finding(dtype: str) -> None:
    def build() -> nn.Module:
        norms = [nn.LayerNorm(HIDDEN), nn.BatchNorm1d(HIDDEN), nn.GroupNorm(4, HIDDEN), nn.RMSNorm(HIDDEN)]
        activations = [nn.GELU(), nn.PReLU(), nn.Softmax(1), nn.Softplus(), nn.LogSoftmax(1), nn.Dropout(0.2)]
        return nn.Sequential(nn.Linear(12, HIDDEN), *norms, *activations, nn.Linear(HIDDEN, 3))

    assert of_case(case(build), dtype) == ()
