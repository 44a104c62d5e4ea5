"""From what is to be timed to two calls: the same work on the same data, without autocast and with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from pytest_amp.cases import Case, MakeOptimizer, expect_maker, loss_of, made_of, named_tensors
from pytest_amp.devices import Device
from pytest_amp.failure import Misuse, is_misuse
from pytest_amp.speed.paired import Arms

__tracebackhide__ = is_misuse

Autocast = Callable[[], AbstractContextManager[object]]
#: One unit of work, which enters the region that it is given around what a user has within autocast.
TimedStep = Callable[[Autocast], object]
#: Makes data on the device, and returns the call to be timed, all of it within autocast.
Workload = Callable[[], Callable[[], object]]

#: Large enough for gradients of a mean over a million tokens, small enough to overflow nowhere.
SCALE = 2.0**10


def step_maker(
    work: Case | Workload,
    device: Device,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    optimizer: MakeOptimizer | None = None,
) -> Callable[[], TimedStep]:
    """Makes a step of ``work`` on ``device``, on new tensors at each call: of a case its training step.

    ``optimizer`` makes one of a list of parameters, whose step is then part of the training step. In float16
    the loss is scaled, as users do. Raises Misuse for what is neither a case nor a function, and for an optimizer
    beside a function, which has no parameters to give it.
    """
    expect_maker(optimizer)
    if not isinstance(work, Case):
        if not callable(work) or isinstance(work, torch.nn.Module):
            raise Misuse(
                f"check_speedup was given {type(work).__name__}; valid: what amp.case(build, batch, loss) makes, or a "
                "function that makes data and returns the call to be timed"
            )
        if optimizer is not None:
            raise Misuse("optimizer= beside a function, which has no parameters to give it; valid: with a case")
        return lambda: step_of(work)

    def make() -> TimedStep:
        case = work.realise(seed=seed).on(device.torch_device)
        made = made_of([p for p in case.model.parameters() if p.requires_grad], optimizer) if optimizer else None
        scaler = torch.amp.GradScaler(device.type, init_scale=SCALE) if dtype == torch.float16 else None
        return training_step(
            case.model,
            case.batch,
            lambda model, batch: loss_of(work.loss(model, batch)),
            optimizer=made,
            scaler=scaler,
        )

    return make


def name_of(work: Case | Workload) -> str:
    """What messages and observations call ``work``: the case's name, or the function's."""
    return work.name if isinstance(work, Case) else getattr(work, "__name__", type(work).__name__)


def step_of(work: Workload) -> TimedStep:
    """A step that makes the call of ``work``, whole within the region. Raises Misuse where ``work`` makes none."""
    call = work()
    if not callable(call):
        raise Misuse(f"{name_of(work)} returned {type(call).__name__}; valid: the call to be timed, as lambda: a @ b")

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
    """Forward within the region, backward outside, gradients made anew; then the step of ``optimizer`` if there is one.

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
    """Both arms of ``step``, on the same tensors.

    The candidate enters autocast at each call, as a user's step does: casts of weights are within the
    time.
    """
    return Arms(lambda: step(nullcontext), lambda: step(lambda: device.autocast(dtype)))
