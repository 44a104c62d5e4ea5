"""Operators without rounding are exact on low-precision values: selection, in-place forms, NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.run.targets import Target

from .long_operators import ELEMENTWISE


def _repeated_values(amp: SuiteAmp) -> Tensor:
    """Return few distinct values, most of them repeated, some at the ends of the range; float32 represents them all."""
    drawn = (4 * torch.randn(64, 48)).round().div(4).to(amp.dtype)
    shares = torch.tensor([1, 0.5, -1, -0.5, 0.25, 0.75, 0.125, -0.125], dtype=torch.float64)
    drawn[0, :8] = (torch.finfo(amp.dtype).max * shares).to(amp.dtype)
    drawn[1, :2] = torch.tensor([torch.inf, -torch.inf])
    drawn[2, :2] = torch.tensor([torch.finfo(amp.dtype).smallest_normal / 2, -0.0])
    return drawn.to(amp.device.torch_device)


def _ordered(x: Tensor) -> Tensor:
    return x.sort(dim=-1).values.contiguous()


#: Operators that compare values, and return some of them or their indices.
CHOICES: dict[str, Callable[[Tensor], Any]] = {
    "topk": lambda x: x.topk(9, -1).values,
    "topk, smallest": lambda x: x.topk(9, 0, largest=False).values,
    "sort": lambda x: x.sort(dim=-1, stable=True),
    "sort, descending": lambda x: x.sort(dim=0, stable=True, descending=True),
    "argsort": lambda x: x.argsort(dim=-1, stable=True),
    "msort": torch.msort,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(0),
    "argmax of all": torch.argmax,
    "max": lambda x: x.max(-1).values,
    "min": lambda x: x.min(0).values,
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((0, 1)),
    "aminmax": torch.aminmax,
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "fmin": lambda x: torch.fmin(x, x.flip(0)),
    "cummax": lambda x: x.cummax(-1).values,
    "median": lambda x: x.median(-1).values,
    "kthvalue": lambda x: x.kthvalue(5, -1).values,
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(_ordered(x), return_counts=True),
    "searchsorted": lambda x: torch.searchsorted(_ordered(x), x),
    "searchsorted, right": lambda x: torch.searchsorted(_ordered(x), x, right=True),
    "bucketize": lambda x: torch.bucketize(x, _ordered(x)[4]),
    "<": lambda x: x < x.flip(0),
    "==": lambda x: x == x.flip(0),
    "<= a number": lambda x: x <= 0.3,
    "== a number": lambda x: x == 0.25,
    "isin": lambda x: torch.isin(x, x[3]),
    "nonzero": torch.nonzero,
    "count_nonzero": lambda x: x.count_nonzero(0),
    "any": lambda x: x.any(-1),
    "where": lambda x: torch.where(x > x.flip(0), x, x.flip(1)),
    "clamp": lambda x: x.clamp(-0.25, 0.25),
    "sign": torch.sign,
    "signbit": torch.signbit,
    "copysign": lambda x: torch.copysign(x, x.flip(0)),
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "frexp": torch.frexp,
    "isfinite": torch.isfinite,
    "max_pool2d": lambda x: f.max_pool2d(x.view(1, 4, 16, -1), 2),
    "tolist": lambda x: torch.tensor(x.tolist(), dtype=torch.float64),
    "item": lambda x: torch.tensor([value.item() for value in x[:3].flatten()], dtype=torch.float64),
}


def _tensors(actual: Any) -> list[Tensor]:
    return [actual] if isinstance(actual, Tensor) else list(actual)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_among_low_numbers_is_that_among_wide_ones(amp: SuiteAmp, choice: str) -> None:
    """Select among the same values in float64 on the CPU: the same result, for ties and the ends of the range, too."""
    x = _repeated_values(amp)
    actual, expected = _tensors(CHOICES[choice](x)), _tensors(CHOICES[choice](x.cpu().double()))
    assert len(actual) == len(expected)
    for index, (result, reference) in enumerate(zip(actual, expected, strict=True)):
        different = int((result.cpu().double() != reference.double()).sum())
        assert different == 0, (
            f"{choice} of {amp.dtype} values: {different} of {reference.numel()} differ in result {index}"
        )


_INPLACE: dict[str, dict[str, float]] = {
    **{name: {} for name in ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "mish", "hardtanh", "selu")},
    "elu": {"alpha": 0.7},
    "celu": {"alpha": 0.7},
    "leaky_relu": {"negative_slope": 0.3},
    "threshold": {"threshold": 0.1, "value": -1.0},
}

#: Methods that have an in-place twin with an underscore, and their arguments.
_METHODS: dict[str, Callable[[Tensor], tuple[object, ...]]] = {
    **dict.fromkeys(
        (
            *("abs", "neg", "exp", "sigmoid", "tanh", "square", "sin", "cos", "erf", "floor", "round", "trunc"),
            *("frac", "sign", "reciprocal", "expm1"),
        ),
        lambda _: (),
    ),
    "clamp": lambda _: (-0.3, 0.3),
    "add": lambda y: (y,),
    "sub": lambda y: (y,),
    "mul": lambda y: (y,),
    "div": lambda y: (y,),
    "pow": lambda _: (2,),
    "lerp": lambda y: (y, 0.3),
    "addcmul": lambda y: (y, y.flip(0)),
    "addcdiv": lambda y: (y, y.abs() + 1),
    "masked_fill": lambda y: (y > 0, 0.1),
    "cumsum": lambda _: (0,),
    "index_copy": lambda y: (0, torch.arange(y.shape[0], device=y.device).flip(0), y),
}  # fmt: skip


#: In-place derivatives are computed from the rounded result, the only tensor left.
_OF_THE_RESULT = ("elu", "celu", "selu")


def _in_place(name: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results of ``name`` on ``x``, as a new tensor and in place."""
    if name in _INPLACE:
        function: Any = getattr(f, name)
        return function(x, **_INPLACE[name]), function(x * 1, **_INPLACE[name], inplace=True)
    return getattr(x, name)(*_METHODS[name](y)), getattr(x * 1, f"{name}_")(*_METHODS[name](y))


@pytest.mark.parametrize("name", [*_INPLACE, *_METHODS])
def test_in_place_is_what_a_new_tensor_would_be(amp: SuiteAmp, name: str) -> None:
    """Results on low-precision values are bitwise equal, and so are gradients computed from the same tensors."""
    y = torch.randn(64, 67).to(amp.device.torch_device, amp.dtype)
    start = torch.randn(64, 67).to(y)
    results = []
    for form in range(2):
        x = start.clone().requires_grad_()
        result = _in_place(name, x, y)[form]
        torch.autograd.backward(result, torch.ones_like(result) * 0.5)
        results.append((result.detach(), x.grad))
    (new, gradient), (placed, gradient_in_place) = results
    assert gradient is not None
    assert gradient_in_place is not None
    assert [new.dtype, gradient.dtype] == [placed.dtype, gradient_in_place.dtype]
    assert torch.equal(new, placed), f"{name} in place returns different values"
    allowed = 4 * amp.precision.u if name in _OF_THE_RESULT else 0.0
    close = torch.allclose(gradient, gradient_in_place, rtol=0.0, atol=allowed, equal_nan=True)
    assert close, f"{name} in place has different gradients"


def _tied(x: Tensor) -> Tensor:
    """Return rows of integers with ties of the maximum and the minimum, zero, and both bounds of a clamp."""
    return torch.tensor([[2, -2, 0, 1, 2, -2, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0], [3, 3, -3, -3, 1, -1, 2, 0]]).to(x)


#: Functions without a derivative at some of these points: torch chooses a value, the same for every dtype.
KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "max of all": torch.max,
    "min of all": torch.min,
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "minimum": lambda x: torch.minimum(x, x.flip(1)),
    "fmax": lambda x: torch.fmax(x, x.flip(1)),
    "relu": f.relu,
    "relu6": lambda x: f.relu6(2 * x),
    "leaky_relu": lambda x: f.leaky_relu(x, 0.25),
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-2, 2),
    "clamp by tensors": lambda x: x.clamp(torch.full_like(x, -2), torch.full_like(x, 2)),
    "hardtanh": lambda x: f.hardtanh(x, -2.0, 2.0),
    "hardswish": f.hardswish,
    "hardsigmoid": f.hardsigmoid,
    "hardshrink": lambda x: f.hardshrink(x, 1.0),
    "softshrink": lambda x: f.softshrink(x, 1.0),
    "threshold": lambda x: f.threshold(x, 1.0, 0.5),
    "norm": lambda x: x.norm(dim=-1),
    "norm of order 1": lambda x: x.norm(1, dim=-1),
    "norm of infinite order": lambda x: x.norm(torch.inf, dim=-1),
    "prod": lambda x: x.prod(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "std": lambda x: x.std(-1),
    "sort": lambda x: x.sort(dim=-1, stable=True).values * torch.arange(8, device=x.device),
    "cummax": lambda x: x.cummax(-1).values,
    "max_pool1d": lambda x: f.max_pool1d(x[None], 4),
    "l1_loss": lambda x: f.l1_loss(x, x.detach(), reduction="sum"),
    "huber_loss": lambda x: f.huber_loss(x, torch.zeros_like(x), delta=2.0, reduction="sum"),
    "hinge_embedding_loss": lambda x: f.hinge_embedding_loss(x, torch.ones_like(x) - 2, margin=2.0, reduction="sum"),
    "where": lambda x: torch.where(x > 0, x, 0.5 * x),
    "sign": lambda x: x * x.sign(),
}


@pytest.mark.parametrize("name", KINKS)
def test_gradients_at_kinks_are_those_of_wide_numbers(amp: SuiteAmp, name: str) -> None:
    """Ties divide the gradient, or one element gets it, as in float64: equal up to one rounding of the quotient."""
    low = torch.zeros((), device=amp.device.torch_device, dtype=amp.dtype)
    actual = []
    for like in (low, torch.zeros((), dtype=torch.float64)):
        x = _tied(like).requires_grad_()
        torch.autograd.backward(KINKS[name](x).sum())
        assert x.grad is not None
        actual.append(x.grad.cpu().double())
    gradient, expected = actual
    close = torch.allclose(gradient, expected, rtol=4 * amp.precision.u, atol=0.0, equal_nan=True)
    assert close, f"{name}: the gradient is {gradient.tolist()}, in float64 {expected.tolist()}"


#: Elementwise functions, and functions that take the maximum or the sum of a few values.
_PASSING: dict[str, Callable[[Tensor], Tensor]] = {
    **ELEMENTWISE,
    "clamp from below": lambda x: x.clamp(min=-1),
    "clamp by tensors": lambda x: x.clamp(-torch.ones_like(x), torch.ones_like(x)),
    "minimum": lambda x: torch.minimum(x, x.flip(0)),
    "fmod": lambda x: torch.fmod(x, 2),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(-1).values,
    "min of all": torch.min,
    "cummax": lambda x: x.cummax(-1).values,
    "cumsum": lambda x: x.cumsum(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=-1),
    "std": lambda x: x.std(-1),
    "layer_norm": lambda x: f.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: f.group_norm(x.view(4, 8, -1), 2),
    "max_pool1d": lambda x: f.max_pool1d(x[None], 2),
    "max_pool2d": lambda x: f.max_pool2d(x.view(2, 2, -1, 8), 2),
    "adaptive_max_pool2d": lambda x: f.adaptive_max_pool2d(x.view(2, 2, -1, 8), 3),
    "avg_pool1d": lambda x: f.avg_pool1d(x[None], 2),
    "matmul": lambda x: x @ x.T,
    "linear": lambda x: f.linear(x, x[:2]),
    "interpolate": lambda x: f.interpolate(x.view(2, 2, -1, 8), scale_factor=2.0),
    "pad": lambda x: f.pad(x, (1, 1)),
    "dropout in evaluation": lambda x: f.dropout(x, 0.5, training=False),
}

_NONFINITE = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}


def _is_known_difference(device_type: str, name: str, bad: str) -> bool:
    """Return whether a case fails: oneDNN's gelu returns NaN for infinity on some CPUs (pytorch/pytorch#185770)."""
    return device_type == "cpu" and name.startswith("gelu") and bad == "inf"


def _kinds(x: Tensor) -> Tensor:
    """Return 0 for a finite value, 1 and 2 for the infinities, 3 for NaN."""
    return x.isposinf() + 2 * x.isneginf() + 3 * x.isnan()


def _nonfinite_cases(target: Target) -> Iterable[object]:
    for name in _PASSING:
        for bad in _NONFINITE:
            if not _is_known_difference(target.device.type, name, bad):
                yield pytest.param((name, bad), id=f"{name}, {bad}")


@pytest.mark.amp_parametrize("case", _nonfinite_cases)
def test_what_is_no_number_stays_none(amp: SuiteAmp, case: tuple[str, str]) -> None:
    """NaN and infinities have the positions of float64's, inside and outside a region: no overflow becomes finite."""
    name, bad = case
    x = torch.randn(4, 64).to(amp.dtype)
    x[1, 5], x[2, 40:44] = _NONFINITE[bad], _NONFINITE[bad]
    expected = _kinds(_PASSING[name](x.double()))
    for enabled in (False, True):
        with amp.autocast(enabled=enabled):
            actual = _kinds(_PASSING[name](x.to(amp.device.torch_device))).cpu()
        different = int((actual != expected).sum())
        where = "in a region" if enabled else "outside"
        assert different == 0, (
            f"{name} of {bad} {where}: {different} of {expected.numel()} values differ from float64 in kind"
        )
