"""Float64 gradients along every argument are the derivatives: the reference of low-precision gradients is correct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import exceeds

from ..gradients.test_layer_arguments import LAYERS, tensors_of
from ..gradients.test_losses import LOSSES
from .arguments import ROWS, Row

#: Steps of the finite differences, of which the best result counts: the first is the most exact, the last avoids kinks.
STEPS = (1e-5, 1e-7, 1e-9)
#: Allowed error of a derivative. The last step alone has at most 1e-5: float64's roundoff of a sum of about
#: 100, divided by the step.
MOST = 1e-4

#: Rows whose function detaches a part of an argument, which has no gradient.
HELD = (
    *("batch_norm in evaluation", "cross_entropy, everything", "multi_margin, p of 2"),
    *("binary_cross_entropy_with_logits, everything", "gaussian, full, none", "gaussian, full, sum"),
    "gaussian, full, mean",
)
#: Rows whose gradient is not a derivative, by definition.
OTHERWISE = (
    *("embedding, padding", "embedding of low weights, padding", "embedding, by frequency"),
    "embedding of low weights, by frequency",
)
#: Losses that cannot be differentiated along weights or signs, which these make of their targets.
REFUSED = ("binary_cross_entropy_with_logits_weighted", "soft_margin")


def _normed(norm: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a norm to a power: a norm alone has second derivatives that nearly cancel."""
    return lambda x: norm(x) ** 3


#: Smooth functions, so that a penalty on gradients may use them: a function of a matrix, elementwise or of rows.
SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": f.silu,
    "gelu": f.gelu,
    "gelu, tanh": lambda x: f.gelu(x, approximate="tanh"),
    "mish": f.mish,
    "softplus": f.softplus,
    "elu": lambda x: f.elu(x, 0.7),
    "logsigmoid": f.logsigmoid,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": _normed(lambda x: x.softmax(-1)),
    "functional.softmax": _normed(lambda x: f.softmax(x, 0)),
    "log_softmax": lambda x: f.log_softmax(x, -1) ** 2,
    "logsumexp": lambda x: x.logsumexp(0) ** 2,
    "layer_norm": _normed(lambda x: f.layer_norm(x, x.shape[1:])),
    "rms_norm": _normed(lambda x: f.rms_norm(x, x.shape[1:])),
    "batch_norm": _normed(lambda x: f.batch_norm(x, None, None, training=True)),
    "group_norm": _normed(lambda x: f.group_norm(x, 2)),
    "normalize": _normed(f.normalize),
    "renorm": _normed(lambda x: torch.renorm(x, 2, 0, 0.5)),
    "norm": lambda x: x.norm(dim=1) ** 2,
    "std": lambda x: x.std(1) ** 2,
    "a product": lambda x: (x @ x.t()) ** 2,
    "linear": lambda x: f.linear(x, x * 2, x[:, 0]) ** 2,
    "attention": lambda x: f.scaled_dot_product_attention(x, x * 2, x * 3, is_causal=True),
    "cross_entropy": lambda x: f.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1], reduction="none"),
    "mse_loss": lambda x: f.mse_loss(x, x.square(), reduction="none"),
    "kl_div": lambda x: f.kl_div(x.log_softmax(1), x.flip(0).softmax(1), reduction="none"),
    "exp, log and pow": lambda x: (x.exp() + 1).log() ** 1.5,
    "cumsum": lambda x: x.cumsum(0) ** 3,
    "cumprod": lambda x: (1 + x / 8).cumprod(1),
    "conv1d": lambda x: f.conv1d(x[None], x[None, :, :3]) ** 2,
}


def _differences(function: Callable[[], Tensor], tensor: Tensor, direction: Tensor) -> list[float]:
    """Return the derivative of ``function`` along ``direction`` at ``tensor``, which it reads, for each step."""
    before, actual = tensor.detach().clone(), []
    with torch.no_grad():
        for step in STEPS:
            tensor.copy_(before + step * direction)
            ahead = float(function())
            tensor.copy_(before - step * direction)
            actual.append((ahead - float(function())) / (2 * step))
        tensor.copy_(before)
    return actual


def _expect_derivatives(amp: SuiteAmp, what: str, function: Callable[[], Tensor], tensors: dict[str, Tensor]) -> None:
    """Compare gradients of ``function``, a number computed from ``tensors``; a missing gradient is one of zeros."""
    gradients = torch.autograd.grad(function(), list(tensors.values()), allow_unused=True)
    for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
        direction = torch.randn_like(tensor)
        products = direction * (torch.zeros_like(tensor) if gradient is None else gradient.to_dense())
        actual = float(products.sum())
        derivatives = _differences(function, tensor, direction)
        # Terms of both signs may cancel: a derivative is compared with the size of its terms.
        scale = max(float(products.norm()), *map(abs, derivatives))
        error, derivative = min((abs(actual - derivative), derivative) for derivative in derivatives)
        allowed = MOST * scale * amp.config.tolerance_scale
        if exceeds(error, allowed):
            raise AmpFailure(
                f"{what}: in float64 the gradient of {name} is not the derivative"
                + (": there is none" if gradient is None else ""),
                label_before="differences of values",
                before=f"{derivative:.8g} along a random direction",
                now=f"{actual:.8g}, torch {torch.__version__}, on the CPU",
                likely="a gradient is wrong in every dtype, so that no comparison of dtypes detects it",
            )


def _weighed(results: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
    weights = [torch.randn(x.shape, dtype=torch.float64) for x in results]
    return lambda result: torch.stack([(x * w).sum() for x, w in zip(result, weights, strict=True)]).sum()


def _drawn(row: Row) -> dict[str, Tensor]:
    """Return values that are well separated if the row selects among them."""
    drawn = {}
    for index, shape in enumerate((*row.low, *row.wide)):
        count = torch.Size(shape).numel()
        apart = 1 + torch.randperm(count).double().view(shape) / count + index / (3 * count)
        drawn[f"argument {index}"] = (apart if row.distinct else torch.randn(shape).double()).requires_grad_()
    return drawn


@pytest.mark.amp(devices=["cpu"])  # the references of every device are computed on a CPU
@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", [name for name in ROWS if name not in (*HELD, *OTHERWISE)])
def test_gradients_of_operators_are_derivatives(amp: SuiteAmp, name: str) -> None:
    """Check every operator along each of its arguments."""
    drawn = _drawn(ROWS[name])
    call = ROWS[name].function
    weighed = _weighed([call(*drawn.values())])
    _expect_derivatives(amp, name, lambda: weighed([call(*drawn.values())]), drawn)


@pytest.mark.amp(devices=["cpu"])  # the references of every device are computed on a CPU
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses_are_derivatives(amp: SuiteAmp, name: str) -> None:
    """Check losses along logits, and along targets with values: distillation trains through targets, too."""
    loss = LOSSES[name]
    logits = torch.randn(loss.shape).double().requires_grad_()
    targets = torch.randn(loss.shape).double().requires_grad_(name not in REFUSED)
    weighed = _weighed([loss.function(logits, targets, "none")])
    drawn = {"logits": logits, **({"targets": targets} if targets.requires_grad else {})}
    _expect_derivatives(amp, name, lambda: weighed([loss.function(logits, targets, "none")]), drawn)


@pytest.mark.amp(devices=["cpu"])  # the references of every device are computed on a CPU
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_layers_are_derivatives(amp: SuiteAmp, name: str) -> None:
    """Check recurrent, attention and decoder layers along inputs, states and parameters."""
    layer = LAYERS[name]
    module = layer.build().train(not layer.evaluated).double()
    inputs = {f"input {i}": (torch.randn(x) / 2).double().requires_grad_() for i, x in enumerate(layer.shapes)}

    def call() -> list[Tensor]:
        returned: Any = layer.call(module, *inputs.values())
        return tensors_of(returned)

    weighed = _weighed(call())
    _expect_derivatives(amp, name, lambda: weighed(call()), {**inputs, **dict(module.named_parameters())})


@pytest.mark.amp(devices=["cpu"])  # the references of every device are computed on a CPU
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_what_is_smooth(amp: SuiteAmp, name: str, order: int) -> None:
    """Check second derivatives, too, as a gradient penalty and second-order optimizers need them."""
    x = torch.randn(6, 8).double().requires_grad_()
    weighed, direction = _weighed([SMOOTH[name](x)]), torch.randn(6, 8).double()

    def along() -> Tensor:
        if order == 1:
            return weighed([SMOOTH[name](x)])
        with torch.enable_grad():  # differences are taken without
            (gradient,) = torch.autograd.grad(weighed([SMOOTH[name](x)]), [x], create_graph=True)
            return (gradient * direction).sum()

    _expect_derivatives(amp, f"{name}, derivative {order}", along, {"its argument": x})
