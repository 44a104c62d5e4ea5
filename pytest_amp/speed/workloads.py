"""Conversion of a workload into two calls: the same work on the same data, without and with autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from pytest_amp.cases import Case, MakeOptimizer, expect_maker, loss_of, made_of, named_tensors
from pytest_amp.devices import Device
from pytest_amp.failure import AmpUsageError, is_usage_error
from pytest_amp.speed.paired import Arms

__tracebackhide__ = is_usage_error

Autocast = Callable[[], AbstractContextManager[object]]
#: Function that does one unit of work. Its argument is the region, which it enters where a user enters autocast.
TimedStep = Callable[[Autocast], object]
#: Function that creates data on the device and returns the call to be timed. The whole call runs under autocast.
Workload = Callable[[], Callable[[], object]]

#: Loss scale that is large enough for gradients of a mean over a million tokens, and small enough not to overflow.
SCALE = 2.0**10


def step_maker(
    work: Case | Workload,
    device: Device,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    optimizer: MakeOptimizer | None = None,
) -> Callable[[], TimedStep]:
    """Return a function that makes a step of ``work`` on new tensors: for a case its training step.

    ``optimizer`` makes an optimizer of a list of parameters, whose step is then part of the training step. In float16
    the loss is scaled, as users do. Raises AmpUsageError for ``work`` that is neither a case nor a function, and for an
    optimizer with a function, which has no parameters.
    """
    expect_maker(optimizer)
    if not isinstance(work, Case):
        if not callable(work) or isinstance(work, torch.nn.Module):
            raise AmpUsageError(
                f"check_speedup was given {type(work).__name__}; expected what amp.case(build, batch, loss) makes, or "
                "a function that makes data and returns the call to be timed"
            )
        if optimizer is not None:
            raise AmpUsageError("optimizer= beside a function, which has no parameters to give it; expected a case")
        return lambda: step_of(work)

    def make() -> TimedStep:
        case = work.realise(seed=seed).on(device.torch_device)
        optimizer_of_step = (
            made_of([p for p in case.model.parameters() if p.requires_grad], optimizer) if optimizer else None
        )
        scaler = torch.amp.GradScaler(device.type, init_scale=SCALE) if dtype == torch.float16 else None
        return training_step(
            case.model,
            case.batch,
            lambda model, batch: loss_of(work.loss(model, batch)),
            optimizer=optimizer_of_step,
            scaler=scaler,
        )

    return make


def name_of(work: Case | Workload) -> str:
    """Return the name of ``work`` in messages and observations: the case's name, or the function's."""
    return work.name if isinstance(work, Case) else getattr(work, "__name__", type(work).__name__)


def step_of(work: Workload) -> TimedStep:
    """Return a step that makes the call of ``work`` inside the region. Raises AmpUsageError if that is no call."""
    call = work()
    if not callable(call):
        raise AmpUsageError(
            f"{name_of(work)} returned {type(call).__name__}; expected the call to be timed, as lambda: a @ b"
        )

    def step(autocast: Autocast) -> object:
        with autocast():
            return call()

    return step


def training_step(
    model: torch.nn.Module,
    batch: object,
    loss: Callable[[torch.nn.Module, object], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> TimedStep:
    """Return a step: forward inside the region, backward outside with new gradients, then ``optimizer``'s step, if any.

    ``scaler`` is used under autocast only: float32 has none.
    """
    leaves = [tensor for _, tensor in named_tensors(batch) if tensor.requires_grad]

    def step(autocast: Autocast) -> object:
        model.zero_grad(set_to_none=True)
        for leaf in leaves:
            leaf.grad = None
        with autocast():
            value = loss(model, batch)
            low = torch.is_autocast_enabled(value.device.type)
        if scaler is None or not low:
            value.backward()  # type: ignore[no-untyped-call]
            if optimizer is not None:
                optimizer.step()
            return value
        scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
        return value

    return step


def arms_of(step: TimedStep, device: Device, dtype: torch.dtype) -> Arms:
    """Return both arms of ``step``, on the same tensors.

    The candidate enters autocast at each call, as a user's step does, so that casts of weights are part of the time.
    """
    return Arms(lambda: step(nullcontext), lambda: step(lambda: device.autocast(dtype)))
