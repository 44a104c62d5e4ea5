"""Parameters over a training's life: scalars, groups that are added late, freezing and loading in between."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp

from .training import BAD, EXPLICIT, INF, NAN, ScalerFactory, started, step_and_update, training

_SCALE = 8.0
FOREACH = pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
#: Among them a scalar, like a learned temperature, and an empty tensor, like an empty mask.
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3, 2), (0,), (2, 1, 2, 1, 2))


def _parameters(amp: SuiteAmp, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape, device=amp.device.torch_device, dtype=dtype)) for shape in SHAPES]


def _scaled_gradients(parameters: list[nn.Parameter], scale: float, bad: tuple[int, float] | None = None) -> None:
    """Set gradients to ones times ``scale``; ``bad`` fills the whole gradient of one parameter."""
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, scale)
        if bad is not None and bad[0] == index:
            parameter.grad.fill_(bad[1])


def _started(amp: SuiteAmp, amp_scaler: ScalerFactory) -> torch.amp.GradScaler:
    return started(amp, amp_scaler(init_scale=_SCALE))


#: A clean step, and each non-finite value in the gradient of each shape that has elements.
PLANTED = {"clean": None} | {
    f"{shape}-{bad}": (index, bad) for index, shape in enumerate(SHAPES) if 0 not in shape for bad in (INF, NAN)
}


@FOREACH
@EXPLICIT
@pytest.mark.parametrize("planted", PLANTED)
def test_parameters_of_every_shape_count(
    amp: SuiteAmp, amp_scaler: ScalerFactory, planted: str, *, foreach: bool, explicit: bool
) -> None:
    """A non-finite scalar skips the step, and a finite one is unscaled, as any tensor."""
    parameters, scaler, bad = _parameters(amp), _started(amp, amp_scaler), PLANTED[planted]
    optimizer = torch.optim.SGD(parameters, lr=0.5, foreach=foreach)
    _scaled_gradients(parameters, _SCALE, bad)
    step_and_update(scaler, optimizer, explicit=explicit)
    expected = 0.5 if bad is None else 1.0
    moved = [shape for shape, p in zip(SHAPES, parameters, strict=True) if not bool((p == expected).all())]
    assert not moved, f"parameters of shapes {moved} are not {expected}"
    assert scaler.get_scale() == (_SCALE if bad is None else _SCALE / 2)


@FOREACH
@pytest.mark.parametrize("dtypes", [1, 2], ids=["float32", "float32 and float64"])
def test_clipping_counts_every_shape_and_dtype(amp: SuiteAmp, *, foreach: bool, dtypes: int) -> None:
    """The norm is that of all gradients together, and all of them are clipped by it; also by value."""
    parameters = _parameters(amp)
    if dtypes > 1:
        parameters += _parameters(amp, torch.float64)
    _scaled_gradients(parameters, 3.0)
    count = sum(p.numel() for p in parameters)
    actual = nn.utils.clip_grad_norm_(parameters, 1.5, foreach=foreach)
    assert float(actual) == pytest.approx(3.0 * count**0.5, rel=2.0**-20)
    for parameter in parameters:
        assert parameter.grad is not None
        expected = torch.full_like(parameter.grad, 1.5 / count**0.5)
        torch.testing.assert_close(parameter.grad, expected, rtol=2.0**-18, atol=0.0)
    nn.utils.clip_grad_value_(parameters, 2.0**-4, foreach=foreach)
    assert all(bool((p.grad == 2.0**-4).all()) for p in parameters if p.grad is not None)


@FOREACH
@EXPLICIT
@BAD
def test_a_group_that_is_added_later_counts(
    amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float | None, *, foreach: bool, explicit: bool
) -> None:
    """Call ``add_param_group`` after a step, as for thawed layers: the next step includes all groups."""
    (first, late), scaler = _parameters(amp)[1:3], _started(amp, amp_scaler)
    optimizer = torch.optim.SGD([first], lr=0.5, foreach=foreach)
    _scaled_gradients([first], _SCALE)
    step_and_update(scaler, optimizer, explicit=explicit)
    optimizer.add_param_group({"params": [late], "lr": 0.25})
    _scaled_gradients([first, late], _SCALE, None if bad is None else (1, bad))
    step_and_update(scaler, optimizer, explicit=explicit)
    assert bool((first == (0.0 if bad is None else 0.5)).all())
    assert bool((late == (0.75 if bad is None else 1.0)).all())
    assert scaler.get_scale() == (_SCALE if bad is None else _SCALE / 2)


@EXPLICIT
@BAD
def test_what_is_frozen_after_backward_still_counts(
    amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float | None, *, explicit: bool
) -> None:
    """The optimizer steps every parameter that has a gradient; so the scaler has to unscale and check it."""
    parameters, scaler = _parameters(amp), _started(amp, amp_scaler)
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    _scaled_gradients(parameters, _SCALE, None if bad is None else (2, bad))
    parameters[2].requires_grad = False
    step_and_update(scaler, optimizer, explicit=explicit)
    expected = 0.5 if bad is None else 1.0
    assert all(bool((p == expected).all()) for p in parameters)


@FOREACH
def test_hooks_of_steps_are_called_with_steps(amp: SuiteAmp, amp_scaler: ScalerFactory, *, foreach: bool) -> None:
    """Hooks run before and after each step that is taken; a skipped one calls neither."""
    parameters, scaler = _parameters(amp), _started(amp, amp_scaler)
    optimizer, called = torch.optim.SGD(parameters, lr=0.5, foreach=foreach), []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    for bad in (None, (0, INF), None):
        _scaled_gradients(parameters, scaler.get_scale(), bad)
        step_and_update(scaler, optimizer)
        called.append("update")
    assert called == ["before", "after", "update", "update", "before", "after", "update"]


CLEARED: dict[str, Callable[[nn.Module, torch.optim.Optimizer], None]] = {
    "optimizer": lambda _, optimizer: optimizer.zero_grad(),
    "optimizer, to zero": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "module": lambda model, _: model.zero_grad(),
    "module, to zero": lambda model, _: model.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("way", CLEARED)
def test_gradients_may_be_cleared_in_any_way(amp: SuiteAmp, amp_scaler: ScalerFactory, way: str, kind: str) -> None:
    """Drop gradients or set them to zero, by the optimizer or the model: the steps have the bits of those without."""
    ends = []
    for clear in (CLEARED[way], lambda model, _: model.apply(_drop)):
        torch.manual_seed(amp.config.seed)
        model, scaler = nn.Linear(8, 8).to(amp.device.torch_device), amp_scaler(init_scale=_SCALE)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        for _ in range(3):
            clear(model, optimizer)
            # A gradient with all of float32's bits.
            loss = torch.stack([(p * torch.randn(p.shape).to(p.device)).sum() for p in model.parameters()]).sum()
            torch.autograd.backward(scaler.scale(loss))
            step_and_update(scaler, optimizer)
        ends.append([p.detach() for p in model.parameters()])
    different = [index for index, (a, b) in enumerate(zip(*ends, strict=True)) if not torch.equal(a, b)]
    assert not different, f"gradients that were cleared by the {way} give other steps: parameters {different}"


def _drop(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def test_a_copy_of_a_scaler_is_its_own(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """A ``copy.deepcopy`` is independent: an overflow of one leaves the other's scale and count unchanged."""
    run = training(amp, amp_scaler(init_scale=_SCALE))
    run.iterate()
    other = training(amp, copy.deepcopy(run.scaler))
    assert other.state == run.state
    other.iterate(INF)
    assert other.state == (_SCALE / 2, 0)
    assert run.state == (_SCALE, 1)


def _tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def test_nothing_of_an_iteration_outlives_its_update(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The scaler retains neither an optimizer nor its found-inf: trainings that create many would leak memory."""
    run, ended, alive = training(amp, amp_scaler(init_scale=_SCALE)), [], []
    gc.freeze()  # objects of older tests and modules are most of the process, and take seconds to search
    try:
        for bad in (None, INF, None, INF, None, INF):
            optimizer = torch.optim.SGD([run.parameter], lr=0.5)
            run.backward(bad)
            run.scaler.unscale_(optimizer)
            run.scaler.step(optimizer)
            run.scaler.update()
            ended.append(weakref.ref(optimizer))
            del optimizer
            alive.append(_tensors_alive())
    finally:
        gc.unfreeze()
    assert [reference() for reference in ended] == [None] * 6, "optimizers that are gone are still there"
    assert alive[-1] <= alive[1], f"after each of six iterations there are {alive} tensors"


LARGE = (200, 300)
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam, loop": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False, amsgrad=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a region"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loaded_state_has_the_bits_of_the_saved_one(
    amp: SuiteAmp, amp_scaler: ScalerFactory, kind: str, *, inside: bool
) -> None:
    """Save and load large tensors, inside a region or not: the following step has the bits of the one without."""
    ends = []
    for load in (False, True):
        generator = torch.Generator().manual_seed(amp.config.seed)
        parameter = nn.Parameter(torch.randn(LARGE, generator=generator).to(amp.device.torch_device))
        optimizer, scaler = OPTIMIZERS[kind]([parameter]), _started(amp, amp_scaler)
        for step in range(3):
            gradient = torch.randn(LARGE, generator=generator) * scaler.get_scale()
            parameter.grad = gradient.to(parameter.device)
            step_and_update(scaler, optimizer)
            if load and step == 1:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = OPTIMIZERS[kind]([parameter])
                with amp.autocast(enabled=inside):
                    optimizer.load_state_dict(saved)
                _expect_same_state(saved, optimizer.state_dict())
        ends.append(parameter.detach())
    assert torch.equal(*ends), f"{kind} continues differently from a loaded state"


def _expect_same_state(saved: dict[str, Any], loaded: dict[str, Any]) -> None:
    for index, state in saved["state"].items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert loaded["state"][index][key].dtype is value.dtype, f"{key} was loaded in another dtype"
                assert torch.equal(loaded["state"][index][key], value), f"{key} was loaded with other values"


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_learning_rate_may_be_a_tensor(amp: SuiteAmp, amp_scaler: ScalerFactory, kind: str) -> None:
    """A float32 tensor is not rounded: the steps are those of the Python number, up to float32's rounding."""
    ends = []
    for rate in (0.1234567, torch.tensor(0.1234567)):
        parameters, scaler = _parameters(amp), _started(amp, amp_scaler)
        kind_of_optimizer: Any = torch.optim.SGD if kind == "SGD" else torch.optim.Adam
        optimizer = kind_of_optimizer(parameters, lr=rate, foreach=False)
        for _ in range(2):
            _scaled_gradients(parameters, scaler.get_scale())
            step_and_update(scaler, optimizer)
        ends.append(torch.cat([p.detach().flatten() for p in parameters]))
    torch.testing.assert_close(ends[1], ends[0], rtol=2.0**-20, atol=0.0)
