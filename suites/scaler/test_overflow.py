"""An inf or NaN in any gradient skips the whole step: no parameter and no optimizer state changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import Device, DeviceKind
from pytest_amp.failure import AmpFailure

from .training import INF, NAN, ScalerFactory, training

BAD = pytest.mark.parametrize("bad", [INF, -INF, NAN], ids=["inf", "minus inf", "nan"])


def _parameters(amp: SuiteAmp, count: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 2, device=amp.device.torch_device, dtype=dtype)) for _ in range(count)]


def _expect_skipped(
    amp: SuiteAmp, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> None:
    """Step and update; raise AmpFailure unless the step was skipped and the scale halved."""
    before, scale = [p.detach().clone() for p in parameters], scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    changed = [i for i, (old, p) in enumerate(zip(before, parameters, strict=True)) if not torch.equal(old, p)]
    if changed or scaler.get_scale() != scale / 2:
        raise AmpFailure(
            f"an overflow was not handled on {amp.target.id}: parameters {changed} changed",
            label_before="rule",
            before=f"no parameter changes, and the scale backs off from {scale} to {scale / 2}",
            now=f"the scale is {scaler.get_scale()}",
            likely="the non-finite check misses a gradient, or its answer is not obeyed",
        )


@BAD
def test_a_non_finite_gradient_skips_the_step(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float) -> None:
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward(bad)
    _expect_skipped(amp, run.scaler, run.optimizer, [run.parameter])
    run.iterate()
    assert run.parameter.flatten().tolist() == [0.5, 2.0, -0.5, 0.75], "after a skipped step the next one is not exact"


@pytest.mark.amp(dtypes=["fp16"])
def test_an_overflow_of_the_scale_itself_skips_the_step(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Overflow fp16, which ends at 65504, by a scale of 2**16: the gradient of the product is inf."""
    run = training(amp, amp_scaler(init_scale=2.0**16))
    run.backward()
    assert bool(run.gradient.isinf().all())
    _expect_skipped(amp, run.scaler, run.optimizer, [run.parameter])
    while run.state[0] > 2.0**14:  # 3.0, the largest input, times the scale has to fit
        run.backward()
        _expect_skipped(amp, run.scaler, run.optimizer, [run.parameter])
    before = run.parameter.detach().clone()
    run.iterate()
    assert not torch.equal(run.parameter, before), "the scale has come down, and still the step is skipped"


@BAD
@pytest.mark.parametrize("place", [(0, 0), (1, 3), (2, 5)], ids=["first", "middle", "last"])
def test_one_bad_element_anywhere_is_found(
    amp: SuiteAmp, amp_scaler: ScalerFactory, place: tuple[int, int], bad: float
) -> None:
    """Plant a non-finite value in any of several parameters, at any element."""
    parameters, scaler = _parameters(amp, 3), amp_scaler(init_scale=8.0)
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    scaler.scale(torch.stack([p.sum() for p in parameters]).sum()).backward()
    gradient = parameters[place[0]].grad
    assert gradient is not None
    gradient.view(-1)[place[1]] = bad
    _expect_skipped(amp, scaler, optimizer, parameters)


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 70001])
def test_bad_elements_are_found_in_any_size(amp: SuiteAmp, amp_scaler: ScalerFactory, size: int) -> None:
    """Plant it at the end of a tensor that no vector width divides: a vector remainder, the last block of a grid."""
    parameter = nn.Parameter(torch.ones(size, device=amp.device.torch_device))
    scaler, optimizer = amp_scaler(init_scale=8.0), torch.optim.SGD([parameter], lr=0.5)
    for index in {0, size // 2, size - 1}:
        scaler.scale(parameter.sum()).backward()
        assert parameter.grad is not None
        parameter.grad[index] = NAN
        _expect_skipped(amp, scaler, optimizer, [parameter])
        optimizer.zero_grad()


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.T.contiguous().T,
    "every other": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "channels_last": lambda x: x.view(1, 4, 2, 3).contiguous(memory_format=torch.channels_last),
    "channels_last_3d": lambda x: x.view(1, 4, 1, 2, 3).contiguous(memory_format=torch.channels_last_3d),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_elements_are_found_in_any_layout(amp: SuiteAmp, amp_scaler: ScalerFactory, layout: str) -> None:
    device = amp.device.torch_device
    gradient = LAYOUTS[layout](torch.full((4, 6), 8.0, device=device))
    assert not gradient.is_contiguous()
    parameter = nn.Parameter(torch.ones(gradient.shape, device=device))
    scaler, optimizer = amp_scaler(init_scale=8.0), torch.optim.SGD([parameter], lr=0.5)
    scaler.scale(parameter.sum())
    parameter.grad = gradient
    scaler.step(optimizer)
    scaler.update()
    assert bool((parameter == 0.5).all()), f"a {layout} gradient is not unscaled right"
    gradient.fill_(8.0)
    gradient[tuple(size - 1 for size in gradient.shape)] = INF
    _expect_skipped(amp, scaler, optimizer, [parameter])


def test_one_bad_group_skips_all_groups(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    parameters, scaler = _parameters(amp, 3), amp_scaler(init_scale=8.0)
    groups: list[dict[str, Any]] = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    scaler.scale(torch.stack([p.sum() for p in parameters]).sum()).backward()
    assert parameters[2].grad is not None
    parameters[2].grad[0, 0] = INF
    _expect_skipped(amp, scaler, optimizer, parameters)
    optimizer.zero_grad()
    scaler.scale(torch.stack([p.sum() for p in parameters]).sum()).backward()
    scaler.step(optimizer)
    assert [p[0, 0].item() for p in parameters] == [0.5, 0.5, 0.75]


def test_parameters_without_gradients_are_passed_over(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """A frozen parameter, and one that the loss does not reach, are passed over."""
    parameters, scaler = _parameters(amp, 3), amp_scaler(init_scale=8.0)
    parameters[1].requires_grad = False
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    scaler.scale(parameters[0].sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert [p[0, 0].item() for p in parameters] == [0.5, 1.0, 1.0]
    optimizer.zero_grad()
    scaler.scale(parameters[0].sum()).backward()
    assert parameters[0].grad is not None
    parameters[0].grad[0, 0] = INF
    _expect_skipped(amp, scaler, optimizer, parameters)


@pytest.mark.amp(dtypes=["bf16"])
@BAD
def test_bf16_gradients_are_checked(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float) -> None:
    """bf16 gradients of bf16 parameters are unscaled and checked, or refused with an error, as on CUDA (torch 2.11)."""
    (parameter,), scaler = _parameters(amp, 1, torch.bfloat16), amp_scaler(init_scale=8.0)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler.scale(parameter.sum()).backward()
    refusal: str | None = None
    try:
        scaler.step(optimizer)
    except NotImplementedError as error:
        refusal = str(error)
        amp.observe(f"bf16 gradients, {bad}", "refused", kind="state")
    if refusal is not None:
        assert amp.device.kind is DeviceKind.ACCELERATOR
        assert "BFloat16" in refusal
        assert bool((parameter == 1).all())
        return
    amp.observe(f"bf16 gradients, {bad}", "checked", kind="state")
    scaler.update()
    assert bool((parameter == 0.5).all())
    optimizer.zero_grad()
    scaler.scale(parameter.sum()).backward()
    assert parameter.grad is not None
    parameter.grad[2, 1] = bad
    _expect_skipped(amp, scaler, optimizer, [parameter])


@pytest.mark.amp(dtypes=["fp16"])
@pytest.mark.parametrize("method", ["unscale_", "step"])
def test_fp16_gradients_are_refused(amp: SuiteAmp, amp_scaler: ScalerFactory, method: str) -> None:
    """Unscaled fp16 gradients would underflow: parameters have to be float32."""
    (parameter,), scaler = _parameters(amp, 1, torch.float16), amp_scaler(init_scale=8.0)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler.scale(parameter.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        getattr(scaler, method)(optimizer)
    assert bool((parameter == 1).all())


def test_parameters_of_several_dtypes(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """float32 and other dtypes in one optimizer: gradients of each dtype are unscaled and checked."""
    dtypes = [torch.float32] + ([torch.float64] if amp.device.type != "mps" else [])
    if amp.device.kind is DeviceKind.CPU:  # accelerators may refuse it: test_bf16_gradients_are_checked
        dtypes.append(torch.bfloat16)
    for bad in (None, *dtypes):
        parameters, scaler = [_parameters(amp, 1, dtype)[0] for dtype in dtypes], amp_scaler(init_scale=8.0)
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        scaler.scale(torch.stack([p.sum().float() for p in parameters]).sum()).backward()
        for parameter in parameters:
            assert parameter.grad is not None
            if parameter.dtype is bad:
                parameter.grad[0, 1] = NAN
        if bad is not None:
            _expect_skipped(amp, scaler, optimizer, parameters)
        else:
            scaler.step(optimizer)
            assert all(bool((p == 0.5).all()) for p in parameters)


@pytest.mark.amp(devices=["cpu", "cuda"])
def test_sparse_gradients_with_duplicates(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Duplicates are summed, each unscaled once; a non-finite row skips the step (pytorch/pytorch#35810)."""
    table = nn.Embedding(5, 2, sparse=True).to(amp.device.torch_device)
    nn.init.ones_(table.weight)
    scaler, optimizer = amp_scaler(init_scale=8.0), torch.optim.SGD(table.parameters(), lr=0.5)
    rows = torch.tensor([1, 1, 2], device=amp.device.torch_device)
    before = table.weight.detach().clone()
    scaler.scale(table(rows).sum()).backward()
    scaler.unscale_(optimizer)
    assert table.weight.grad is not None
    assert table.weight.grad.coalesce().values().tolist() == [[2.0, 2.0], [1.0, 1.0]]
    scaler.step(optimizer)
    scaler.update()
    step = torch.tensor([0.0, 1.0, 0.5, 0.0, 0.0], device=before.device)[:, None]
    assert torch.equal(table.weight, before - step)
    optimizer.zero_grad()
    scaler.scale(table(rows)[0].sum() * INF).backward()
    _expect_skipped(amp, scaler, optimizer, [table.weight])


@BAD
def test_a_skipped_step_leaves_momentum_alone(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float) -> None:
    parameters, scaler = _parameters(amp, 2), amp_scaler(init_scale=8.0)
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5, weight_decay=0.25)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(torch.stack([p.square().sum() for p in parameters]).sum()).backward()
        if step == 1:
            before = copy.deepcopy(optimizer.state_dict()["state"])
            assert parameters[1].grad is not None
            parameters[1].grad[0, 0] = bad
            _expect_skipped(amp, scaler, optimizer, parameters)
        else:
            scaler.step(optimizer)
            scaler.update()
    after = optimizer.state_dict()["state"]
    assert after.keys() == before.keys()
    assert all(torch.equal(after[i]["momentum_buffer"], before[i]["momentum_buffer"]) for i in after)


class _CopiesArrive(TorchFunctionMode):
    """Mode that synchronises after each ``Tensor.to`` that copies to the host, so that this race cannot be lost."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.to and result.device.type == "cpu" != args[0].device.type:
            self.device.synchronize()
        return result


@pytest.mark.amp(devices=["cuda", "xpu"])
@pytest.mark.parametrize("where", ["accelerator", "cpu"])
def test_parameters_on_two_devices(amp: SuiteAmp, amp_scaler: ScalerFactory, where: str) -> None:
    """Check each device of one optimizer, with parameters on the accelerator and the CPU; one inf skips both."""
    parameters = {"accelerator": _parameters(amp, 1)[0], "cpu": nn.Parameter(torch.ones(3, 2))}
    scaler, optimizer = amp_scaler(init_scale=8.0), torch.optim.SGD(parameters.values(), lr=0.5)
    for bad in (False, True):
        optimizer.zero_grad()
        scaler.scale(parameters["accelerator"].sum() + parameters["cpu"].to(amp.device.torch_device).sum()).backward()
        gradient = parameters[where].grad
        assert gradient is not None
        with _CopiesArrive(amp.device):
            if bad:
                gradient[1, 1] = INF
                _expect_skipped(amp, scaler, optimizer, list(parameters.values()))
            else:
                scaler.step(optimizer)
                scaler.update()
                assert [p[0, 0].item() for p in parameters.values()] == [0.5, 0.5]


@pytest.mark.amp(devices=["cuda"])
def test_an_overflow_on_the_host_is_not_lost(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Keep the GPU busy, so that the copy of found-inf always arrives after the CPU's check."""
    device = amp.device.torch_device
    busy, parameters = torch.ones(4096, 4096, device=device), [*_parameters(amp, 1), nn.Parameter(torch.ones(3, 2))]
    scaler, optimizer = amp_scaler(init_scale=8.0), torch.optim.SGD(parameters, lr=0.5, foreach=False)
    scaler.scale(torch.mm(busy, busy)[0, 0])
    amp.device.synchronize()
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 8.0)
    assert parameters[1].grad is not None
    parameters[1].grad[1, 1] = INF
    for _ in range(20):
        torch.mm(busy, busy)
    scaler.step(optimizer)
    amp.device.synchronize()
    assert all(bool((parameter == 1).all()) for parameter in parameters), "the step was taken"


def test_a_scaler_in_another_thread_skips_its_step(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """One model for each thread, as services train them: an overflow is skipped there, too."""
    run = training(amp, amp_scaler(init_scale=8.0))
    with ThreadPoolExecutor(1) as pool:
        states = [pool.submit(run.iterate, bad).result() for bad in (INF, None)]
    assert [scale for scale, _ in states] == [4.0, 4.0]
    assert bool(run.parameter.isfinite().all()), "an overflow reached a parameter in a thread"


#: Contexts of a training loop that do not concern the scaler.
AROUND: dict[str, Callable[[SuiteAmp], AbstractContextManager[object]]] = {
    "no_grad": lambda _: torch.no_grad(),
    "inference_mode": lambda _: torch.inference_mode(),
    "enable_grad": lambda _: torch.enable_grad(),
    "a region": lambda amp: amp.autocast(),
    "a disabled region": lambda amp: amp.autocast(enabled=False),
    "detect_anomaly": lambda _: torch.autograd.detect_anomaly(check_nan=False),
    "saved_tensors_hooks": lambda _: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "set_default_device": lambda _: torch.device("meta"),
    "record_function": lambda _: torch.profiler.record_function("a step"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("call", ["step", "unscale_ then step"])
@pytest.mark.parametrize("around", AROUND)
def test_what_is_around_a_step_is_nothing_to_it(
    amp: SuiteAmp, amp_scaler: ScalerFactory, around: str, call: str
) -> None:
    """Overflow is skipped in each context of a loop, and the next step is exact."""
    run = training(amp, amp_scaler(init_scale=8.0))
    for bad, values in ((INF, [1.0, 1.0, 1.0, 1.0]), (None, [0.5, 2.0, -0.5, 0.75])):
        run.backward(bad)
        with AROUND[around](amp):
            if call == "unscale_ then step":
                run.scaler.unscale_(run.optimizer)
            run.scaler.step(run.optimizer)
            run.scaler.update()
        assert run.parameter.flatten().tolist() == values, f"a step in {around} is not the one outside"
        assert run.scaler.get_scale() == 4.0
