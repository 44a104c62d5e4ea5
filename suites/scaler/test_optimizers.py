"""Every optimizer, in each implementation: a clean step equals the unscaled one, a skipped step changes nothing."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target
from pytest_amp.scaler.optimizers import make_optimizer, optimizers_on, variant_of

from .training import EXPLICIT, INF, NAN, ScalerFactory, started, step_and_update


def _optimizers(target: Target) -> Iterator[object]:
    """Yield all optimizers that step on the target."""
    for optimizer in optimizers_on(target.device.torch_device):
        yield pytest.param(optimizer, id=optimizer)


EACH = pytest.mark.amp_parametrize("optimizer", _optimizers)

_SCALE = 2.0**10


def _parameters(amp: SuiteAmp) -> list[nn.Parameter]:
    torch.manual_seed(amp.config.seed)
    return [nn.Parameter(torch.randn(3, 5).to(amp.device.torch_device)) for _ in range(3)]


def _set_gradients(
    optimizer: str, parameters: list[nn.Parameter], step: int, scale: float, bad: float | None = None
) -> None:
    """Set the same seeded gradients for each run, times ``scale``: an explicit scaled backward, for any dtype."""
    generator = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=generator) * scale
        if bad is not None and index == 1:
            gradient[2, 3] = bad
        gradient = gradient.to(parameter.device)
        parameter.grad = gradient.to_sparse(1) if variant_of(optimizer).sparse else gradient


def _tensors(state: dict[Any, Any]) -> dict[str, torch.Tensor]:
    """Return an optimizer's state, flat: ``0.exp_avg``; Python numbers as tensors."""
    return {
        f"{index}.{key}": torch.as_tensor(value)
        for index, values in state.items()
        for key, value in values.items()
        if value is not None
    }


@EACH
@EXPLICIT
def test_clean_steps_are_the_unscaled_ones(
    amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str, *, explicit: bool
) -> None:
    """Take three steps at a power of two as the scale: parameters and state have the bits of those without a scaler."""
    runs = []
    for enabled in (False, True):
        parameters = _parameters(amp)
        instance, scaler = make_optimizer(optimizer, parameters), amp_scaler(init_scale=_SCALE, enabled=enabled)
        if enabled:
            started(amp, scaler)
        for step in range(3):
            _set_gradients(optimizer, parameters, step, scaler.get_scale())
            step_and_update(scaler, instance, explicit=explicit)
        state = _tensors(instance.state_dict()["state"])
        runs.append({**{f"parameter {i}": p.detach() for i, p in enumerate(parameters)}, **state})
    plain, scaled = runs
    different = [key for key in plain if not torch.equal(plain[key], scaled[key])]
    if different or plain.keys() != scaled.keys():
        raise AmpFailure(
            f"{optimizer} on {amp.target.id} steps otherwise with a scaler than without: {', '.join(different)}",
            label_before="rule",
            before="a scale that is a power of two changes no bit",
            likely="the gradients are divided twice, not at all, or inexactly",
        )


def _is_hollow(tensor: torch.Tensor) -> bool:
    """Return whether a float32 tensor was rounded to a low dtype; False below eight different values."""
    values = tensor.detach().flatten()
    numbers = values[(values != 0) & values.isfinite()].unique()
    if tensor.dtype is not torch.float32 or len(numbers) < 8:
        return False
    return any(torch.equal(numbers, numbers.to(low).float()) for low in (torch.bfloat16, torch.float16))


@EACH
def test_parameters_and_state_are_float32(amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str) -> None:
    """Values are float32, too: nothing in a step with a scaler is rounded to any low dtype."""
    parameters = _parameters(amp)
    instance, scaler = make_optimizer(optimizer, parameters), started(amp, amp_scaler(init_scale=_SCALE))
    for step in range(3):
        _set_gradients(optimizer, parameters, step, scaler.get_scale())
        with amp.autocast():  # where some users call it
            step_and_update(scaler, instance, explicit=False)
    state = {f"parameter {i}": p.detach() for i, p in enumerate(parameters)} | _tensors(instance.state_dict()["state"])
    low = [key for key, tensor in state.items() if tensor.dtype in (torch.bfloat16, torch.float16)]
    hollow = [key for key, tensor in state.items() if _is_hollow(tensor)]
    if low or hollow:
        raise AmpFailure(
            f"{optimizer} on {amp.target.id} keeps its state in low precision: {', '.join(low + hollow)}",
            label_before="rule",
            before="parameters and optimizer state are float32, and not only by dtype",
            now=f"low dtype: {low}; values that are all representable in a low dtype: {hollow}",
            likely="the step computes in low precision, or rounds its state",
        )


@EACH
def test_implementations_agree(amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str) -> None:
    """Three scaled steps of each implementation end where the loop's do, up to float32's rounding.

    A step has a dozen operations, each rounded once: 64 units of 2**-24 bound three steps.
    """
    ends = []
    loop = optimizer.partition(", ")[0] + (", loop" if ", " in optimizer else "")
    for which in (loop, optimizer):
        parameters = _parameters(amp)
        instance, scaler = make_optimizer(which, parameters), started(amp, amp_scaler(init_scale=_SCALE))
        for step in range(3):
            _set_gradients(optimizer, parameters, step, scaler.get_scale())
            step_and_update(scaler, instance, explicit=False)
        ends.append(torch.stack([p.detach().double().cpu() for p in parameters]))
    distance = float((ends[0] - ends[1]).norm() / ends[0].norm())
    assert distance <= 64 * 2.0**-24, f"{optimizer} ends {distance:.2e} away from {loop}"


@EACH
@EXPLICIT
@pytest.mark.parametrize("bad", [INF, NAN], ids=["inf", "nan"])
def test_a_skipped_step_changes_nothing(
    amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str, bad: float, *, explicit: bool
) -> None:
    """Neither parameters nor state change, step counters included; the next clean step continues from there."""
    parameters = _parameters(amp)
    instance, scaler = make_optimizer(optimizer, parameters), started(amp, amp_scaler(init_scale=_SCALE))
    _set_gradients(optimizer, parameters, 0, scaler.get_scale())
    step_and_update(scaler, instance, explicit=explicit)
    before = [p.detach().clone() for p in parameters], copy.deepcopy(_tensors(instance.state_dict()["state"]))
    _set_gradients(optimizer, parameters, 1, scaler.get_scale(), bad)
    step_and_update(scaler, instance, explicit=explicit)
    after = _tensors(instance.state_dict()["state"])
    changed = [
        f"parameter {i}"
        for i, (old, p) in enumerate(zip(before[0], parameters, strict=True))
        if not torch.equal(old, p)
    ]
    changed += [key for key in before[1] if not torch.equal(before[1][key], after[key])]
    changed += [key for key in after if key not in before[1]]
    if changed or scaler.get_scale() != _SCALE / 2:
        raise AmpFailure(
            f"{optimizer} on {amp.target.id} steps although a gradient has {bad} in it: {', '.join(changed)} changed",
            label_before="rule",
            before=f"nothing changes, and the scale becomes {_SCALE / 2}",
            now=f"the scale is {scaler.get_scale()}",
            likely="the optimizer does not obey found_inf",
        )
    _set_gradients(optimizer, parameters, 2, scaler.get_scale())
    step_and_update(scaler, instance, explicit=explicit)
    assert all(bool(p.isfinite().all()) for p in parameters)
    assert not all(torch.equal(old, p) for old, p in zip(before[0], parameters, strict=True)), "it never steps again"


@contextlib.contextmanager
def _memory_filled_with_nan() -> Iterator[None]:
    """Fill the memory of ``torch.empty`` with NaN, so that uninitialised state shows in each run."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
@EACH
def test_a_skipped_first_step_makes_no_state(amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str) -> None:
    """No state, or only zeros as in fused implementations: the following run has the bits of the run without."""
    runs = []
    for first in (None, INF):
        parameters = _parameters(amp)
        instance, scaler = make_optimizer(optimizer, parameters), started(amp, amp_scaler(init_scale=_SCALE))
        with _memory_filled_with_nan():
            if first is not None:
                _set_gradients(optimizer, parameters, 9, scaler.get_scale(), first)
                step_and_update(scaler, instance, explicit=False)
            for step in range(2):
                _set_gradients(optimizer, parameters, step, scaler.get_scale())
                step_and_update(scaler, instance, explicit=False)
        runs.append([p.detach() for p in parameters])
    same = all(torch.equal(left, right) for left, right in zip(*runs, strict=True))
    assert same, f"a skipped first step of {optimizer} leaves something behind"


def test_the_usual_implementations_exist(amp: SuiteAmp) -> None:
    """Record all implementations; on the CPU and on CUDA the usual optimizers have all three."""
    names = list(optimizers_on(amp.device.torch_device))
    amp.observe("optimizers", [*names], kind="state")
    if amp.device.type in ("cpu", "cuda"):
        for name in ("SGD", "Adam", "AdamW"):
            for implementation in ("loop", "foreach", "fused"):
                assert f"{name}, {implementation}" in names
    if amp.device.type == "cpu":
        assert "Adagrad, fused" in names
