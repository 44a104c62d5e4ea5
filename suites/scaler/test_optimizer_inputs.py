"""Inputs of optimizers: groups, frozen groups, missing gradients, several dtypes, sparse gradients, subclasses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name
from pytest_amp.run.targets import Target
from pytest_amp.scaler.optimizers import optimizers_on
from pytest_amp.torch_private import found_infs, scales_its_own_step

from .training import BAD, INF, NAN, ScalerFactory, started, step_and_update

IMPLEMENTATION = pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])

_SCALE = 8.0


def _sgd(groups: Any, implementation: str) -> torch.optim.Optimizer:
    used = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[implementation]
    return torch.optim.SGD(groups, lr=0.5, **used)


def _parameter(amp: SuiteAmp, dtype: torch.dtype = torch.float32, **keywords: bool) -> nn.Parameter:
    return nn.Parameter(torch.ones(3, device=amp.device.torch_device, dtype=dtype), **keywords)


def _first(parameter: nn.Parameter) -> float:
    return parameter.detach()[0].item()


def _give(parameter: nn.Parameter, bad: float | None = None) -> None:
    """Set a scaled gradient of ones, with ``bad`` as its last element."""
    parameter.grad = torch.full_like(parameter, _SCALE)
    if bad is not None:
        parameter.grad[-1] = bad


@IMPLEMENTATION
@BAD
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first group", "middle group", "last group"])
def test_a_bad_gradient_in_any_group_skips_all(
    amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str, bad: float | None, place: int
) -> None:
    """Give each group its own learning rate, one of them 0 as in a warm-up; a clean step uses each group's rate."""
    for rates in ([0.5, 0.25, 0.125], [0.0, 0.25, 0.0]):
        parameters = [_parameter(amp) for _ in rates]
        groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
        optimizer, scaler = _sgd(groups, implementation), started(amp, amp_scaler(init_scale=_SCALE))
        for i, parameter in enumerate(parameters):
            _give(parameter, bad if i == place else None)
        step_and_update(scaler, optimizer)
        moved = [1 - _first(p) for p in parameters]
        assert moved == ([0.0] * 3 if bad is not None else rates)
        assert scaler.get_scale() == (_SCALE if bad is None else _SCALE / 2)


@IMPLEMENTATION
@BAD
def test_frozen_groups_stay(amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str, bad: float | None) -> None:
    """Use a group without gradients, one that is frozen, and one that is thawed for the second step."""
    trained, frozen, unreached = _parameter(amp), _parameter(amp, requires_grad=False), _parameter(amp)
    groups = [{"params": [frozen]}, {"params": [trained]}, {"params": [unreached]}]
    optimizer, scaler = _sgd(groups, implementation), started(amp, amp_scaler(init_scale=_SCALE))
    _give(trained, bad)
    step_and_update(scaler, optimizer)
    assert [_first(p) for p in (frozen, trained, unreached)] == [1.0, 0.5 if bad is None else 1.0, 1.0]
    frozen.requires_grad_()
    _give(frozen)
    frozen.grad = torch.full_like(frozen, scaler.get_scale())
    trained.grad = None
    step_and_update(scaler, optimizer)
    assert _first(frozen) == 0.5


@pytest.mark.parametrize("implementation", ["loop", "foreach"])
def test_an_optimizer_with_only_frozen_groups_is_refused(
    amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str
) -> None:
    optimizer, scaler = _sgd([_parameter(amp)], implementation), started(amp, amp_scaler())
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)


def test_a_fused_optimizer_without_gradients_is_not_refused(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Without gradients it takes no step and raises nothing; ``update`` is refused if no optimizer was checked."""
    parameter = _parameter(amp)
    optimizer, scaler = _sgd([parameter], "fused"), started(amp, amp_scaler())
    scaler.step(optimizer)
    assert bool((parameter == 1).all())
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()


_MIXES = [
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float32),
    (torch.float64, torch.bfloat16, torch.float32),
]


def _mixes(_target: Target) -> Iterator[object]:
    for mix in _MIXES:
        name = "+".join(dtype_name(dtype) for dtype in mix)
        yield pytest.param(mix, id=name)


@IMPLEMENTATION
@pytest.mark.amp_parametrize("dtypes", _mixes)
def test_tensors_of_several_dtypes(
    amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Each dtype in one optimizer is unscaled in itself and checked; a non-finite value of any dtype skips all."""
    for bad in (None, *range(len(dtypes))):
        parameters = [_parameter(amp, dtype) for dtype in dtypes]
        optimizer, scaler = _sgd(parameters, implementation), started(amp, amp_scaler(init_scale=_SCALE))
        for i, parameter in enumerate(parameters):
            _give(parameter, NAN if i == bad else None)
        step_and_update(scaler, optimizer)
        assert [_first(p) for p in parameters] == [0.5 if bad is None else 1.0] * len(dtypes)
        assert [p.dtype for p in parameters] == list(dtypes)


@pytest.mark.amp(devices=["cuda"])
@IMPLEMENTATION
def test_bfloat16_gradients_are_refused(amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str) -> None:
    """CUDA raises before any step or division, with the message that users search for (pytorch/pytorch#127176)."""
    parameter = _parameter(amp, torch.bfloat16)
    optimizer, scaler = _sgd([parameter], implementation), started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter)
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(NotImplementedError, match=r"_amp_foreach_non_finite_check_and_unscale_cuda.*BFloat16"):
            call(optimizer)
    assert parameter.grad is not None
    assert (_first(parameter), float(parameter.grad[0])) == (1.0, _SCALE)


@BAD
def test_fused_optimizers_take_float16_parameters(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float | None) -> None:
    """Fused optimizers unscale within the kernel, without underflow: the only way to train float16 parameters."""
    parameter = _parameter(amp, torch.float16)
    optimizer, scaler = _sgd([parameter], "fused"), started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter, bad)
    step_and_update(scaler, optimizer)
    assert bool((parameter == (0.5 if bad is None else 1.0)).all())
    assert scaler.get_scale() == (_SCALE if bad is None else _SCALE / 2)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("optimizer_type", [torch.optim.SGD, torch.optim.Adagrad], ids=lambda kind: kind.__name__)
@BAD
def test_sparse_gradients_in_one_of_two_groups(
    amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer_type: type[torch.optim.Optimizer], bad: float | None
) -> None:
    """Sparse and dense gradients together: duplicate rows are summed, and a non-finite value in either skips both."""
    step: Callable[..., torch.optim.Optimizer] = functools.partial(optimizer_type, lr=0.5)  # type: ignore[call-arg]
    for where in ("sparse", "dense"):
        runs = []
        for enabled in (True, False):
            table = nn.Embedding(4, 2, sparse=True, device=amp.device.torch_device)
            nn.init.ones_(table.weight)
            dense = _parameter(amp)
            optimizer = step([{"params": table.parameters()}, {"params": [dense]}])
            scaler = amp_scaler(init_scale=_SCALE, enabled=enabled)
            rows = torch.tensor([1, 1, 3], device=amp.device.torch_device)
            scaler.scale(table(rows).sum() + dense.sum()).backward()
            assert table.weight.grad is not None
            assert dense.grad is not None
            if bad is not None and enabled:
                (table.weight.grad if where == "sparse" else dense.grad).mul_(bad)
            step_and_update(scaler, optimizer)
            runs.append([table.weight.detach(), dense.detach()])
        if bad is None:
            assert all(torch.equal(left, right) for left, right in zip(*runs, strict=True))
        else:
            assert all(bool((p == 1).all()) for p in runs[0])


class _Subclass(torch.optim.SGD):
    """torch optimizer under another name, as projects have them."""


class _Own(torch.optim.Optimizer):
    """Optimizer written from scratch: ``step`` subtracts the gradient."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


class _Wrapped:
    """Wrapper with ``param_groups`` and ``step``, as trainers use, which is not an Optimizer."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self._inner = torch.optim.SGD(parameters, lr=lr)
        self.param_groups = self._inner.param_groups

    def step(self) -> None:
        self._inner.step()


@pytest.mark.parametrize("kind", [_Subclass, _Own, _Wrapped], ids=lambda kind: kind.__name__.strip("_").lower())
@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_ then step"])
@BAD
def test_optimizers_of_users(
    amp: SuiteAmp, amp_scaler: ScalerFactory, kind: Callable[..., Any], bad: float | None, *, explicit: bool
) -> None:
    """Users' optimizers are unscaled and skipped as torch's own (huggingface/accelerate#113 is about a wrapper)."""
    parameter = _parameter(amp)
    optimizer, scaler = kind([parameter], lr=0.5), started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter, bad)
    if explicit:
        scaler.unscale_(optimizer)
        assert parameter.grad is not None
        assert float(parameter.grad[0]) == 1.0, "unscale_ did not divide"
    step_and_update(scaler, optimizer)
    assert _first(parameter) == (0.5 if bad is None else 1.0)
    assert scaler.get_scale() == (_SCALE if bad is None else _SCALE / 2)


def test_an_optimizer_that_asks_for_the_scaler_is_given_it(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Follow the older contract ``step(grad_scaler=...)``, with a FutureWarning, where the optimizer unscales."""
    scalers: list[Any] = []

    class Asking(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure: None = None, *, grad_scaler: Any = None) -> None:  # type: ignore[override]
            assert closure is None
            scalers.append(grad_scaler)

    parameter = _parameter(amp)
    optimizer, scaler = Asking([parameter], lr=0.5), started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter)
    with pytest.warns(FutureWarning, match="GradScaler is going to stop passing itself"):
        scaler.step(optimizer)
    assert scalers == [scaler]
    assert _first(parameter) == 1.0
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)


def _fused(target: Target) -> list[str]:
    """Return the names of optimizers with a fused implementation on the target."""
    actual = (name.partition(", ") for name in optimizers_on(target.device.torch_device))
    return [name for name, _, kind in actual if kind == "fused" and name in ("SGD", "Adam", "AdamW", "Adagrad")]


@pytest.mark.amp_parametrize("name", _fused)
@pytest.mark.parametrize("bad", [None, INF], ids=["clean", "inf"])
def test_nothing_is_left_on_a_fused_optimizer(
    amp: SuiteAmp, amp_scaler: ScalerFactory, name: str, bad: float | None
) -> None:
    """``grad_scale`` and ``found_inf`` are removed afterwards: a later ``step`` of the optimizer ignores the scaler."""
    parameter = _parameter(amp)
    optimizer = getattr(torch.optim, name)([parameter], lr=0.5, fused=True)
    scaler = started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter, bad)
    step_and_update(scaler, optimizer)
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")
    before = parameter.detach().clone()
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not bool((parameter == before).any()), "a step without the scaler obeys what the scaler found before"
    assert bool((parameter.grad == 1).all()), "a step without the scaler divides by its scale"


def test_fused_optimizers_say_so(amp: SuiteAmp) -> None:
    """Fused optimizers have the flag by which the scaler leaves unscaling to them (Adagrad since torch 2.12)."""
    actual = {}
    for name in ("SGD", "Adam", "AdamW", "Adagrad"):
        optimizer = getattr(torch.optim, name)([_parameter(amp)], lr=0.5, fused=True)
        actual[name] = scales_its_own_step(optimizer)
    amp.observe("fused optimizers that unscale", [name for name, says in actual.items() if says], kind="state")
    assert all(actual[name] for name in ("SGD", "Adam", "AdamW"))


def test_a_wrapper_and_what_it_wraps_are_one(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    parameter = _parameter(amp)
    inner = torch.optim.SGD([parameter], lr=0.5)
    wrapper: Any = _Wrapped([parameter], lr=0.5)
    wrapper.param_groups = inner.param_groups
    scaler = started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter)
    scaler.unscale_(wrapper)
    scaler.step(inner)
    assert _first(parameter) == 0.5


@pytest.mark.parametrize(
    "form",
    [
        "keyword",
        "none",
        "positional",
    ],
)
def test_lbfgs_is_refused(amp: SuiteAmp, amp_scaler: ScalerFactory, form: str) -> None:
    """LBFGS needs a closure, which the scaler refuses; without one it is a TypeError."""
    parameter = _parameter(amp)
    optimizer, scaler = torch.optim.LBFGS([parameter]), started(amp, amp_scaler(init_scale=_SCALE))
    _give(parameter)
    error, words = (TypeError, "closure") if form == "none" else (RuntimeError, "Closure use is not")
    with pytest.raises(error, match=words):
        scaler.step(
            optimizer,
            *([parameter.sum] if form == "positional" else []),
            **({"closure": parameter.sum} if form == "keyword" else {}),
        )
    assert bool((parameter == 1).all())


@pytest.mark.amp(devices=["cuda"])
@IMPLEMENTATION
@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_ then step"])
@pytest.mark.parametrize("where", [None, 0, 1], ids=["clean", "inf on the first", "inf on the second"])
def test_parameters_on_two_gpus(
    amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str, where: int | None, *, explicit: bool
) -> None:
    """Each GPU has a found-inf of its own, and an inf on either skips both. A GPU and the host: test_overflow.py."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    devices = [torch.device("cuda", index) for index in range(2)]
    parameters = [nn.Parameter(torch.ones(3, device=device)) for device in devices]
    optimizer, scaler = _sgd(parameters, implementation), started(amp, amp_scaler(init_scale=_SCALE))
    for index, parameter in enumerate(parameters):
        _give(parameter, INF if index == where else None)
    if explicit:
        scaler.unscale_(optimizer)
        actual = {torch.device(device): inf for device, inf in found_infs(scaler, optimizer).items()}
        assert actual == {device: index == where for index, device in enumerate(devices)}
    step_and_update(scaler, optimizer)
    assert [_first(p) for p in parameters] == [0.5 if where is None else 1.0] * 2
    assert scaler.get_scale() == (_SCALE if where is None else _SCALE / 2)
