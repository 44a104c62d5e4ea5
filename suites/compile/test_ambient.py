"""Changes of the region, the weights, the mode and the caches between two calls of one compiled callable."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from .programs import AMBIENT, BACKENDS, OTHER, ambient


def _layers(amp: SuiteAmp) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).to(amp.device.torch_device)


def _batch(amp: SuiteAmp) -> torch.Tensor:
    return torch.randn(4, 16, device=amp.device.torch_device)


@BACKENDS
@pytest.mark.parametrize("called", ["function", "module", "method", "module.compile()"])
def test_a_callable_follows_the_region_it_is_called_in(amp: SuiteAmp, called: str, backend: str) -> None:
    """Follow each ambient state in turn, forward and backward: dtypes as in eager, and a float32 gradient each time."""
    model, batch = _layers(amp), _batch(amp)
    compiled: Callable[[torch.Tensor], torch.Tensor]
    if called == "function":
        compiled = torch.compile(
            functools.partial(functional_call, model, dict(model.named_parameters())), backend=backend
        )
    elif called == "method":
        compiled = torch.compile(model.forward, backend=backend)
    elif called == "module":
        compiled = torch.compile(model, backend=backend)
    else:
        compiled = _compiled_in_place(amp, model, backend)
    actual = []
    for kind in (*AMBIENT, *AMBIENT):
        model.zero_grad()
        with ambient(amp, kind):
            result = compiled(batch)
        result.float().square().mean().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(
            gradient is not None and gradient.dtype is torch.float32 and gradient.any() for gradient in gradients
        ), kind
        actual.append(result.dtype)
    states = {"none": torch.float32, "low": amp.dtype, "other": OTHER[amp.dtype], "disabled": torch.float32}
    expected = [states[kind] for kind in AMBIENT] * 2
    amp.observe(f"{called}, {backend}", [dtype_name(dtype) for dtype in actual], kind="dtype")
    if actual != expected:
        raise AmpFailure(
            f"a compiled {called} ({backend}) on {amp.target.id} does not follow the region it is called in",
            label_before="eager",
            before=", ".join(dtype_name(dtype) for dtype in expected[: len(AMBIENT)]) + ", and again",
            now=f"{', '.join(dtype_name(dtype) for dtype in actual)} on torch {torch.__version__}",
            likely="Dynamo does not guard on the autocast state, or the compiled code does not receive it",
        )


def _compiled_in_place(amp: SuiteAmp, model: nn.Module, backend: str) -> Callable[[torch.Tensor], torch.Tensor]:
    model.compile(backend=backend)
    return model.to(amp.device.torch_device)


def test_sizes_and_regions_change_together(amp: SuiteAmp) -> None:
    """Dynamic shapes: each call has a new number of rows and a new region (the kind of pytorch/pytorch#194329)."""
    model = _layers(amp)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows, kind in enumerate((*AMBIENT, *AMBIENT), start=3):
        batch = torch.randn(rows, 16, device=amp.device.torch_device)
        with ambient(amp, kind):
            actual, expected = compiled(batch), model(batch)
        assert actual.dtype is expected.dtype, f"{rows} rows in {kind}: {actual.dtype}, in eager {expected.dtype}"
        # On an accelerator the kernel depends on the number of rows: eager and compiled code call the same one.
        assert torch.equal(actual, expected), f"{rows} rows in {kind} differ from eager"


def test_new_weights_are_used_in_the_region_that_has_seen_the_old(amp: SuiteAmp) -> None:
    """Casts of weights are part of AOTAutograd's graph: the next call in the region uses an update made inside it.

    Eager mode, and the back end ``eager``, would use the cast in the region's cache.
    """
    layer, batch = nn.Linear(16, 16).to(amp.device.torch_device), _batch(amp)
    compiled = torch.compile(layer, backend="aot_eager")
    with amp.autocast():
        first = compiled(batch)
        with torch.no_grad():
            layer.weight.mul_(2)
            layer.bias.mul_(2)
        second = compiled(batch)
    with amp.autocast():  # a region of its own, without casts of the old weights
        expected = layer(batch)
    assert not torch.equal(first, expected)
    assert torch.equal(second, expected), "the casts of an earlier call are used again"


@BACKENDS
def test_a_cast_made_in_eager_does_not_reach_compiled_code(amp: SuiteAmp, backend: str) -> None:
    """A weight that eager cast under no_grad stays in its cache; the compiled call after it still has a gradient."""
    layer, batch = nn.Linear(16, 16).to(amp.device.torch_device), _batch(amp)
    compiled = torch.compile(layer, backend=backend)
    with amp.autocast():
        with torch.no_grad():
            layer(batch)
        result = compiled(batch)
    result.float().square().mean().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.any()


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_evaluation_between_trainings(amp: SuiteAmp, mode: str) -> None:
    """Evaluation keeps the dtypes of training, and training after it gives the same results as before."""
    model, batch = _layers(amp), _batch(amp)
    compiled = torch.compile(model, backend="aot_eager")

    def train() -> list[torch.Tensor]:
        model.zero_grad()
        with amp.autocast():
            loss = compiled(batch).float().square().mean()
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    before = train()
    with getattr(torch, mode)(), amp.autocast():
        evaluated = compiled(batch)
    assert evaluated.dtype is amp.dtype
    after = train()
    assert len(before) == 4
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("again", ["recompiled", "after a reset"])
def test_what_was_compiled_for_one_dtype_is_not_taken_for_another(
    amp: SuiteAmp, needs: Callable[[str], str], backend: str, again: str
) -> None:
    """AOTAutograd's cache on disk must have the dtype in its key: it is searched whenever Dynamo compiles again.

    The operands have the region's dtype, so that in its own region there is nothing to cast, and inductor has no kernel
    to write.
    """
    x, w = (torch.randn(16, 16, device=amp.device.torch_device).to(amp.dtype) for _ in range(2))
    compiled = torch.compile(torch.matmul, backend=needs(backend))
    for dtype in (amp.dtype, OTHER[amp.dtype], amp.dtype):
        if again == "after a reset":
            torch.compiler.reset()
            compiled = torch.compile(torch.matmul, backend=backend)
        with amp.autocast(dtype=dtype), torch.no_grad():
            actual, expected = compiled(x, w), torch.matmul(x, w)
        assert actual.dtype is dtype, f"code compiled for another dtype runs in autocast({dtype_name(dtype)})"
        assert torch.equal(actual, expected)
