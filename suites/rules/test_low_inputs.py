"""Low-precision inputs without a rule: activations as exact as the format, gradients of parametrized weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, weight_norm

from pytest_amp.amp import SuiteAmp

Function = Callable[[torch.Tensor], torch.Tensor]


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x))


def _tanh(x: torch.Tensor) -> torch.Tensor:
    return 1 - 2 / (torch.exp(2 * x) + 1)


def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> torch.Tensor:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0) / inner))


#: Each activation with its formula (the docstring of its module), which is computed in float64.
ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "relu": (functional.relu, lambda x: x.clamp(min=0)),
    "relu6": (functional.relu6, lambda x: x.clamp(0, 6)),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.25), lambda x: torch.where(x > 0, x, x / 4)),
    "rrelu": (lambda x: functional.rrelu(x, 0.25, 0.25), lambda x: torch.where(x > 0, x, x / 4)),
    "threshold": (lambda x: functional.threshold(x, 0.5, 2.0), lambda x: torch.where(x > 0.5, x, 2.0)),
    "elu": (functional.elu, _elu),
    "elu alpha": (lambda x: functional.elu(x, 0.5), lambda x: _elu(x, 0.5)),
    "celu": (functional.celu, _elu),
    "celu alpha": (lambda x: functional.celu(x, 2.0), lambda x: _elu(x, 2.0, inner=2.0)),
    "selu": (functional.selu, lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805)),
    "gelu": (functional.gelu, lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
    "gelu tanh": (
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda x: x * (1 + _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    ),
    "silu": (functional.silu, lambda x: x * _sigmoid(x)),
    "mish": (functional.mish, lambda x: x * _tanh(torch.log1p(torch.exp(x)))),
    "hardtanh": (functional.hardtanh, lambda x: x.clamp(-1, 1)),
    "hardswish": (functional.hardswish, lambda x: x * (x + 3).clamp(0, 6) / 6),
    "hardsigmoid": (functional.hardsigmoid, lambda x: (x + 3).clamp(0, 6) / 6),
    "hardshrink": (functional.hardshrink, lambda x: torch.where(x.abs() > 0.5, x, 0)),
    "softshrink": (functional.softshrink, lambda x: x.sign() * (x.abs() - 0.5).clamp(min=0)),
    "tanhshrink": (functional.tanhshrink, lambda x: x - _tanh(x)),
    "sigmoid": (torch.sigmoid, _sigmoid),
    "logsigmoid": (functional.logsigmoid, lambda x: -torch.log1p(torch.exp(-x))),
    "tanh": (torch.tanh, _tanh),
    "softplus": (functional.softplus, lambda x: torch.log1p(torch.exp(x))),
    "softsign": (functional.softsign, lambda x: x / (1 + x.abs())),
    "glu": (lambda x: functional.glu(x, 0), lambda x: x[: len(x) // 2] * _sigmoid(x[len(x) // 2 :])),
    "prelu": (
        lambda x: functional.prelu(x, torch.full((1,), 0.25, device=x.device)),
        lambda x: torch.where(x > 0, x, x / 4),
    ),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad], ids=["grad", "no_grad"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_low_inputs_are_rounded_once_or_twice(
    amp: SuiteAmp, activation: str, mode: Callable[[], torch.no_grad]
) -> None:
    """Compare every element: a kernel that uses a narrower format, or ignores its argument, has a larger error."""
    function, formula = ACTIVATIONS[activation]
    values = torch.linspace(-6, 6, 512, device=amp.device.torch_device).to(amp.dtype)
    with mode(), amp.autocast():
        actual = function(values)
    expected = formula(values.double())
    # gelu subtracts erf, or tanh, from 1 in float32, which at -4 costs as much as a rounding of fp16 there.
    floor = 2.0**-10 if activation.startswith("gelu") else 2.0**-14
    scale = expected.abs().clamp(min=floor)
    if activation in {"tanhshrink", "softsign", "hardshrink"}:  # composed of low-precision operators, or of differences
        scale = torch.maximum(scale, values.double().abs())
    error = ((actual.double() - expected).abs() / scale).max().item() / amp.precision.u
    again = (error, error)  # no value is random: the error of the other seeds is the same
    amp.observe(f"{activation}, {mode.__name__}", error, kind="error", unit="u", allowed=2.0, over_seeds=again)
    assert error <= 2.0, f"{activation} of a low-precision input has an error of {error:.3g} roundings"


class _Normed(nn.Module):
    """Layer under a parametrization."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        layers: dict[str, Callable[[], nn.Module]] = {
            "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(8, 6)),
            "weight_norm, conv": lambda: parametrizations.weight_norm(nn.Conv1d(8, 6, 1)),
            "weight_norm, dim": lambda: parametrizations.weight_norm(nn.Linear(8, 6), dim=1),
            "old weight_norm": lambda: weight_norm(nn.Linear(8, 6)),
            "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(8, 6)),
            "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(8, 8)),
        }
        self.layer, self.convolves = layers[kind](), "conv" in kind

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch[:, :, None] if self.convolves else batch)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "kind",
    ["weight_norm", "weight_norm, conv", "weight_norm, dim", "old weight_norm", "spectral_norm", "orthogonal"],
)
def test_parametrized_weights_are_trained(amp: SuiteAmp, kind: str) -> None:
    """The result is low-precision; every parameter of the parametrization gets a float32 gradient near float32's."""
    module = _Normed(kind).to(amp.device.torch_device).eval()  # in training spectral_norm iterates
    batch = torch.randn(4, 8, device=amp.device.torch_device)
    # A sum of squares has hardly a gradient: an orthogonal weight does not change it.
    factors = torch.randn_like(module(batch))
    gradients = []
    for enabled in (False, True):
        module.zero_grad()
        with amp.autocast(enabled=enabled):
            result = module(batch)
            loss = (result.float() * factors).sum()
        loss.backward()
        gradients.append({name: parameter.grad for name, parameter in module.named_parameters()})
    assert result.dtype is amp.dtype
    for name, plain in gradients[0].items():
        actual = gradients[1][name]
        assert plain is not None
        assert actual is not None, f"under autocast {name} gets no gradient"
        assert actual.dtype is torch.float32
        error = (actual - plain).norm() / plain.norm()
        assert error <= 32 * amp.precision.u, f"the gradient of {name} differs from float32's by {error:.3g}"
