"""Backward runs outside the region, in the dtypes of forward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_calls

from .models import loss_of, small
from .state import State, expect_state

_PRODUCTS = ("aten::mm", "aten::addmm")


class Spy(torch.autograd.Function):
    """Identity that records the autocast state of its backward, and the dtype of its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device_type: str, observed: list[object]) -> torch.Tensor:
        """Keep the list for the notes."""
        ctx.device_type, ctx.seen = device_type, observed
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Note state and dtype."""
        state = State.now(ctx.device_type)
        ctx.seen.append((state.enabled, gradient.dtype))
        return gradient, None, None


def test_backward_does_not_see_the_region(amp: SuiteAmp) -> None:
    """Backward, called outside, sees autocast off, though forward ran inside; gradients have their tensors' dtypes."""
    observed: list[object] = []
    matrix = torch.randn(4, 4, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast():
        low = Spy.apply(torch.mm(matrix, matrix), amp.device.type, observed)
        float32 = Spy.apply(low.float(), amp.device.type, observed)
    float32.sum().backward()
    amp.observe("state in backward", [str(row) for row in observed], kind="state")
    expected = [(False, torch.float32), (False, amp.dtype)]
    expect_state(
        amp, "in backward outside the region", observed, expected, likely="backward re-enters forward's region"
    )


def test_backward_multiplies_in_the_dtype_of_forward(amp: SuiteAmp) -> None:
    """Arguments of each product in backward have the dtype of its forward: low, or float32 in the disabled region."""
    device = amp.device.torch_device
    first, in_disabled_region, last = (nn.Linear(size, 16, bias=False).to(device) for size in (8, 16, 16))
    with amp.autocast():
        hidden = first(torch.randn(4, 8, device=device))
        with amp.autocast(enabled=False):
            hidden = in_disabled_region(hidden.float())
        loss = last(hidden).float().sum()
    with recorded_calls() as calls:
        loss.backward()
    products = [{t.partition("[")[0] for t in call.tensors} for call in calls if call.operator in _PRODUCTS]
    actual = [sorted(dtypes) for dtypes in products]
    # Backward of the last layer: weight and input; of the disabled region: weight and input; of the first: weight.
    expected = [[dtype_name(amp.dtype)]] * 2 + [["float32"]] * 2 + [[dtype_name(amp.dtype)]]
    amp.observe("products of backward", [", ".join(dtypes) for dtypes in actual], kind="dtype")
    if actual != expected:
        raise AmpFailure(
            f"backward on {amp.target.id} does not multiply in the dtypes of forward",
            label_before="rule",
            before=str(expected),
            now=str(actual),
            likely="a backward formula casts, or a saved tensor has another dtype than its forward used",
        )


def test_gradients_are_the_same_inside_the_region(amp: SuiteAmp) -> None:
    """Backward inside the region has the same bits if the whole forward ran in low precision.

    The layers have no biases, whose gradients are sums, which CUDA's float32 list includes.
    """
    gradients = []
    for inside in (False, True):
        torch.manual_seed(amp.config.seed)
        layers = nn.Linear(8, 16, bias=False), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4, bias=False)
        model = nn.Sequential(*layers).to(amp.device.torch_device)
        batch = torch.randn(8, 8).to(amp.device.torch_device).requires_grad_()
        with amp.autocast():
            loss = loss_of(model, batch)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        gradients.append([t.grad for t in (*model.parameters(), batch) if t.grad is not None])
    outside, within = gradients
    assert len(outside) == len(within) > 0
    different = [i for i, (a, b) in enumerate(zip(outside, within, strict=True)) if not torch.equal(a, b)]
    assert not different, f"gradients {different} differ between backward outside and inside the region"


def test_backward_inside_a_region_keeps_float32_forward(amp: SuiteAmp) -> None:
    """Models that ran in float32, in a disabled region or outside, have float32 gradients in any region."""
    gradients = []
    for inside in (False, True):
        torch.manual_seed(amp.config.seed)
        layer = nn.Linear(16, 16).to(amp.device.torch_device)
        loss = layer(torch.randn(8, 16, device=amp.device.torch_device)).square().sum()
        with amp.autocast(enabled=inside):
            loss.backward()
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad)
    assert torch.equal(*gradients)


def test_accumulated_gradients_are_summed_in_float32(amp: SuiteAmp) -> None:
    """Two micro-batches leave the float32 sum of the two low-precision gradients, not a rounded one."""
    layer = nn.Linear(16, 16, bias=False).to(amp.device.torch_device)
    batches = [torch.randn(8, 16, device=amp.device.torch_device) for _ in range(2)]
    apart = []
    for batch in batches:
        with amp.autocast():
            loss = layer(batch).float().square().sum()
        apart.append(torch.autograd.grad(loss, layer.weight)[0])
    for batch in batches:
        with amp.autocast():
            loss = layer(batch).float().square().sum()
        loss.backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, apart[0] + apart[1])
    assert not torch.equal(layer.weight.grad, layer.weight.grad.to(amp.dtype).float()), "the sum was rounded"


def test_a_gradient_penalty_has_gradients(amp: SuiteAmp) -> None:
    """Follow torch's amp examples: gradients by ``autograd.grad`` outside, their norm inside, backward."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(amp.device.torch_device)
    batch = torch.randn(8, 8, device=amp.device.torch_device)
    with amp.autocast():
        loss = model(batch).float().square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    assert all(gradient.dtype is torch.float32 for gradient in gradients)
    with amp.autocast():
        total = loss + torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    total.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{key} has no gradient of the penalty"
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any(), f"{key}'s gradient of the penalty is zero"


def _in_a_thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def _by_grad(loss: torch.Tensor, parameters: list[nn.Parameter], *, create_graph: bool = False) -> None:
    gradients = torch.autograd.grad(loss, parameters, create_graph=create_graph)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.detach()


def _in_parts(loss: torch.Tensor, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        loss.backward(inputs=[parameter], retain_graph=True)


def _in_one_thread(loss: torch.Tensor, _: list[nn.Parameter]) -> None:
    with torch.autograd.set_multithreading_enabled(False):
        loss.backward()


#: Ways to compute the gradients of a loss.
CALLERS: dict[str, Callable[[torch.Tensor, list[nn.Parameter]], None]] = {
    "autograd.backward": lambda loss, _: torch.autograd.backward(loss),
    "autograd.backward of several": lambda loss, _: torch.autograd.backward([loss, loss * 0]),
    "autograd.grad": _by_grad,
    "a gradient of its own": lambda loss, _: loss.backward(torch.ones_like(loss)),
    "one parameter at a time": _in_parts,
    "autograd.grad, create_graph": lambda loss, parameters: _by_grad(loss, parameters, create_graph=True),
    "a thread": lambda loss, _: _in_a_thread(loss.backward),
    "a thread, autograd.backward": lambda loss, _: _in_a_thread(lambda: torch.autograd.backward(loss)),
    "a thread, autograd.grad": lambda loss, parameters: _in_a_thread(lambda: _by_grad(loss, parameters)),
    "no threads": _in_one_thread,
    "no_grad": lambda loss, _: torch.no_grad()(loss.backward)(),
    "a Timer": lambda loss, _: _by_a_timer(loss.backward),
}


def _by_a_timer(call: Callable[[], object]) -> None:
    timer = threading.Timer(0, call)
    timer.start()
    timer.join()


@pytest.mark.parametrize("caller", CALLERS)
def test_gradients_do_not_depend_on_who_asks(amp: SuiteAmp, caller: str) -> None:
    """Gradients have the bits of ``loss.backward()``, for every function and thread that runs backward."""
    actual = []
    for ask in (lambda loss, _: loss.backward(), CALLERS[caller]):
        model, batch = small(amp)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with amp.autocast():
            loss = loss_of(model, batch)
        ask(loss, parameters)
        actual.append([parameter.grad for parameter in parameters])
    for expected, gradient in zip(*actual, strict=True):
        assert expected is not None
        assert gradient is not None, f"a gradient is missing with {caller}"
        assert torch.equal(gradient, expected), f"a gradient has different bits with {caller}"
