"""Hooks of every kind see the gradients that arrive; backward through a retained graph repeats them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.numerics import relative_error


def _model(amp: SuiteAmp) -> nn.Sequential:
    torch.manual_seed(amp.config.seed)
    return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 16)).to(amp.device.torch_device)


def _loss(amp: SuiteAmp, model: nn.Module, index: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(amp.config.seed + index)
    batch = torch.randn(8, 24, generator=generator).to(amp.device.torch_device)
    with amp.autocast():
        result: Tensor = model(batch)
    return result.float().square().mean() * 4096  # so that no gradient is subnormal: half of it would be rounded


def _gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _plain(amp: SuiteAmp, index: int = 0) -> list[Tensor]:
    model = _model(amp)
    torch.autograd.backward(_loss(amp, model, index))
    return _gradients(model)


def _expect_same(actual: list[Tensor], expected: list[Tensor], what: str) -> None:
    assert [x.dtype for x in actual] == [x.dtype for x in expected], f"{what} sees gradients of other dtypes"
    different = [index for index, (a, b) in enumerate(zip(actual, expected, strict=True)) if not torch.equal(a, b)]
    assert not different, f"{what} sees different gradients of the parameters {different}"


def test_hooks_after_accumulation_see_the_whole_gradient(amp: SuiteAmp) -> None:
    """``register_post_accumulate_grad_hook`` sees float32 to the last bit, of one micro-batch and of the sum of two."""
    first, second = (_plain(amp, index) for index in range(2))
    model, observed = _model(amp), list[Tensor]()
    parameter: Any
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: observed.append(p.grad.clone()))
    for index, expected in enumerate((first, [a + b for a, b in zip(first, second, strict=True)])):
        observed.clear()
        torch.autograd.backward(_loss(amp, model, index))
        by_shape = {tuple(x.shape): x for x in observed}
        _expect_same([by_shape[tuple(x.shape)] for x in expected], expected, "the hook")
        _expect_same(_gradients(model), expected, "a reader of .grad")


def test_an_optimizer_in_the_backward_pass_steps_as_one_after_it(amp: SuiteAmp) -> None:
    """Step each parameter in a hook as soon as its gradient is complete, then drop the gradient."""
    after, within = _model(amp), _model(amp)
    whole = torch.optim.AdamW(after.parameters(), lr=2.0**-6, foreach=False)
    optimizers = {p: torch.optim.AdamW([p], lr=2.0**-6, foreach=False) for p in within.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    parameter: Any
    for parameter in within.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        torch.autograd.backward(_loss(amp, after))
        whole.step()
        whole.zero_grad()
        torch.autograd.backward(_loss(amp, within))
    assert all(p.grad is None for p in within.parameters())
    actual, expected = ([p.detach() for p in model.parameters()] for model in (within, after))
    _expect_same(actual, expected, "the optimizer")


@pytest.mark.parametrize("hook", ["full", "full_pre", "forward, then tensor"])
def test_hooks_of_modules_see_gradients_in_the_dtype_of_outputs(amp: SuiteAmp, hook: str) -> None:
    """The gradient of a low-precision output is low-precision; doubling it doubles all gradients that depend on it."""
    expected = _plain(amp)
    model, observed = _model(amp), list[torch.dtype]()

    def doubled(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        observed.extend(gradient.dtype for gradient in gradients)
        return tuple(gradient * 2 for gradient in gradients)

    last: Any = model[1]
    if hook == "full":
        last.register_full_backward_hook(lambda _module, inputs, _outputs: doubled(inputs))
    elif hook == "full_pre":
        last.register_full_backward_pre_hook(lambda _module, outputs: doubled(outputs))
    else:
        last.register_forward_hook(lambda _m, _i, output: output.register_hook(lambda g: doubled((g,))[0]) and None)
    torch.autograd.backward(_loss(amp, model))
    assert observed == [amp.dtype]
    actual = _gradients(model)
    # Doubling is exact, and commutes with rounding in everything that is linear.
    _expect_same(actual, [x * (2 if index < 2 else 1) for index, x in enumerate(expected)], f"a {hook} hook")


def test_hooks_of_several_tensors_see_each_gradient(amp: SuiteAmp) -> None:
    """``register_multi_grad_hook`` on the parameters sees each gradient."""
    expected = _plain(amp)
    model, observed = _model(amp), list[Any]()
    torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), observed.extend)
    torch.autograd.backward(_loss(amp, model))
    _expect_same(observed, expected, "the hook")


_X, _W = (6, 24), (16, 24)
#: Functions of an input and a weight that are differentiated twice.
FUNCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (f.linear, _X, _W),
    "matmul": (lambda x, w: x @ w.t(), _X, _W),
    "bmm": (torch.bmm, (2, 6, 24), (2, 24, 8)),
    "conv1d": (f.conv1d, (2, 6, 24), (4, 6, 3)),
    "conv2d": (f.conv2d, (2, 4, 6, 6), (8, 4, 3, 3)),
    "conv_transpose2d": (f.conv_transpose2d, (2, 4, 6, 6), (4, 8, 3, 3)),
    "attention": (lambda x, w: f.scaled_dot_product_attention(x, w, w), (1, 2, 6, 8), (1, 2, 5, 8)),
    "layer_norm": (lambda x, w: f.layer_norm(x @ w.t(), (16,)), _X, _W),
    "softmax": (lambda x, w: (x @ w.t()).softmax(-1), _X, _W),
    "gelu": (lambda x, w: f.gelu(x @ w.t()), _X, _W),
    "embedding": (lambda x, w: f.embedding(torch.arange(6, device=w.device), w) * x, _X, _W),
    "prelu": (lambda x, w: f.prelu(x @ w.t(), w[0, :1]), _X, _W),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_that_is_used_twice_gives_its_gradients_twice(amp: SuiteAmp, function: str) -> None:
    """``retain_graph=True``: each later backward pass repeats the first one, on a CPU bit for bit.

    Elsewhere the order of sums is nondeterministic, and a low-precision result is then rounded differently.
    """
    call, *shapes = FUNCTIONS[function]
    x, weight = (torch.randn(shape).to(amp.device.torch_device).requires_grad_() for shape in shapes)
    with amp.autocast():
        result = call(x, weight)
    loss = (result.float() * torch.linspace(-1, 1, result.numel(), device=x.device).view_as(result)).sum()
    first, second = (torch.autograd.grad(loss, [x, weight], retain_graph=True) for _ in range(2))
    torch.autograd.backward(loss)
    most = 0.0 if amp.device.kind is DeviceKind.CPU else amp.precision.u
    for name, again in (("second", second), ("last", (x.grad, weight.grad))):
        for index, (a, b) in enumerate(zip(again, first, strict=True)):
            assert a is not None, f"the {name} pass gives argument {index} no gradient"
            error = relative_error(a, b)
            assert error <= most, (
                f"the {name} pass differs from the first by {error:.3g} in the gradient of argument {index}"
            )


@pytest.mark.parametrize("function", FUNCTIONS)
def test_strided_gradients_are_as_exact_as_others(amp: SuiteAmp, function: str) -> None:
    """Transposed, expanded or gapped gradients give the result of their contiguous copies."""
    call, *shapes = FUNCTIONS[function]
    x, weight = (torch.randn(shape).to(amp.device.torch_device).requires_grad_() for shape in shapes)
    with amp.autocast():
        result = call(x, weight)
    values = torch.randn(result.shape).to(result.device, result.dtype)
    gaps = torch.empty(*result.shape, 2, dtype=result.dtype, device=result.device)
    gaps[..., 0] = values
    row = values.reshape(-1)[:1].expand(result.shape)
    gradients = {
        "transposed": (values.mT.contiguous().mT, values),
        "with gaps": (gaps[..., 0], values),
        "expanded": (row, row.contiguous()),
    }
    for name, (strided, plain) in gradients.items():
        actual, expected = (torch.autograd.grad(result, [x, weight], g, retain_graph=True) for g in (strided, plain))
        for a, b in zip(actual, expected, strict=True):
            # A different kernel may sum in a different order, and a low-precision result is then rounded differently.
            error = relative_error(a, b)
            assert error <= amp.precision.u, f"{function}: the error of a gradient that is {name} is {error:.3g}"
