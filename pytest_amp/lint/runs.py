"""Runs of the user's functions under a recorder: a case, a training step, an evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim import AdamW

from pytest_amp.account import receive
from pytest_amp.cases import (
    Case,
    MakeOptimizer,
    Realised,
    loss_of,
    made_of,
    named_tensors,
    outputs_by_name,
    passes,
    seeded,
)
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.lint.handed import Evaluation, GivenDevice, RecordedScaler, idle_steps
from pytest_amp.lint.infinities import Infinities
from pytest_amp.lint.place import Place
from pytest_amp.lint.program import Call, Program
from pytest_amp.lint.recorder import Recorder
from pytest_amp.numerics.callers import definition_of
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.training.trajectory import TrainingIteration, TrainingStep

__tracebackhide__ = is_usage_error

#: Number of iterations of a training step that are recorded.
_ITERATIONS = 3


@dataclass(frozen=True)
class LowTensor:
    """Low-precision tensor of a run: its name, its dtype, and where it was created or last written."""

    name: str
    dtype: torch.dtype
    place: Place | None

    def place_or(self, definition: str) -> Place:
        """Return the place, or, if it is unknown, the first line of the function (``definition``)."""
        return self.place if self.place is not None and self.place.line else Place(line=definition)


@dataclass
class CaseRecord:
    """Recorded step of a case in mixed precision, and its forward pass without a region.

    ``loss`` is the call that produced the loss, and ``loss_dtype`` its dtype. ``is_finite`` is True if outputs and
    gradients are finite. ``parameters`` are the low-precision trained parameters and ``buffers`` the low-precision
    buffers, with the places that created them. ``written`` are the names of the buffers that the step wrote to or
    replaced, with the calls that produced their values.
    """

    case: Case
    realised: Realised
    program: Program
    plain: Program
    loss: Call | None
    loss_dtype: torch.dtype | None
    is_finite: bool
    parameters: list[LowTensor] = field(default_factory=list)
    buffers: list[LowTensor] = field(default_factory=list)
    written: Mapping[str, Call | None] = field(default_factory=dict)
    #: Exception that ended the step, of which the record has the calls before it.
    error: Exception | None = None


def record_case(case: Case, conditions: Conditions) -> CaseRecord:
    """Run one step of ``case`` in mixed precision, and its forward pass without a region, under a recorder.

    An exception of the user's code ends a record; that of the step is its ``error``.
    """
    device = conditions.device
    realised = case.realise(seed=conditions.seed)
    plain = _plain_program(case, realised, conditions)
    copied = realised.on(device.torch_device)
    recorder = _recorder(conditions)
    recorder.float32 = Infinities(plain.forward)
    recorder.name(copied.model, copied.batch)
    loss_function = recorder.inside_loss(case.loss)
    loss: torch.Tensor | None = None
    before = {name: id(buffer) for name, buffer in copied.model.named_buffers()}
    with _quiet(conditions), recorder.on():
        recorder.given_depth += 1
        region = conditions.region()
        region.__enter__()
        recorder.given_depth -= 1
        try:
            outputs = loss_function(copied.model, copied.batch)
        except Exception as error:
            if isinstance(error, AmpUsageError) or passes(error):
                raise
            return CaseRecord(case, realised, recorder.program, plain, None, None, is_finite=True, error=error)
        finally:
            region.__exit__(None, None, None)
        loss = loss_of(outputs)
        producer = recorder.producer_of(loss)
        if loss.requires_grad:
            loss.to(torch.promote_types(loss.dtype, torch.float32)).backward()  # type: ignore[no-untyped-call]
    tensors = [*outputs_by_name(outputs).values()]
    tensors += [p.grad for p in copied.model.parameters() if p.grad is not None]
    record = CaseRecord(
        case,
        realised,
        recorder.program,
        plain,
        producer,
        loss.dtype,
        all(_is_finite(tensor) for tensor in tensors),
        written=_written(copied.model, before, recorder),
    )
    record.parameters, record.buffers = low_tensors(case, conditions, realised.model)
    return record


def low_tensors(case: Case, conditions: Conditions, model: torch.nn.Module) -> tuple[list[LowTensor], list[LowTensor]]:
    """Return the low-precision trained parameters, and buffers, with the lines that cast.

    The model is built again under a recorder if there are any.
    """
    parameters = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad and p.dtype in LOW}
    buffers = {name: b.dtype for name, b in model.named_buffers() if b.dtype in LOW}
    if not parameters and not buffers:
        return [], []
    recorder = _recorder(conditions)
    with recorder.on():
        built = case.realise(seed=conditions.seed).model
    tensors = {**dict(built.named_parameters()), **dict(built.named_buffers())}

    def low(names: Mapping[str, torch.dtype]) -> list[LowTensor]:
        low_of_kind = []
        for name, dtype in names.items():
            call = recorder.producer_of(tensors[name]) if name in tensors else None
            place = call.place if call is not None and call.place.line else Place(line=definition_of(case.build))
            low_of_kind.append(LowTensor(name, dtype, place))
        return low_of_kind

    return low(parameters), low(buffers)


def _plain_program(case: Case, realised: Realised, conditions: Conditions) -> Program:
    """Return the record of a forward pass without a region, up to an exception."""
    copied = realised.on(conditions.device.torch_device)
    recorder = _recorder(conditions)
    recorder.float32 = None
    recorder.name(copied.model, copied.batch)
    with _quiet(conditions), recorder.on(), refusals_end():
        recorder.inside_loss(case.loss)(copied.model, copied.batch)
    return recorder.program


@contextlib.contextmanager
def refusals_end() -> Iterator[None]:
    """Suppress exceptions of the user's code in the block: the record up to the exception suffices."""
    try:
        yield
    except (Exception, AmpFailure) as error:
        if isinstance(error, Exception) and not isinstance(error, AmpUsageError) and passes(error):
            raise
        receive(error)


@dataclass
class TrainingRecord:
    """Recorded iterations of a training.

    ``parameters`` are low-precision parameters of the optimizer, ``states`` low-precision tensors of its state,
    ``averages`` those of ``iteration.kept`` that are updated from their own values.
    """

    program: Program
    train: TrainingStep
    parameters: list[LowTensor]
    states: list[LowTensor]
    averages: list[LowTensor]
    #: Places at which an optimizer steps although no parameter of it has a gradient.
    idle: list[Place] = field(default_factory=list)


def record_training(
    case: Case, conditions: Conditions, train: TrainingStep, *, optimizer: MakeOptimizer | None
) -> TrainingRecord:
    """Run ``train`` for three iterations in mixed precision under a recorder; exceptions are passed on.

    The infinities of the same iterations in float32, up to an exception, are recorded first.
    """
    loop = _Loop(case, conditions, train, optimizer)
    plain = _recorder(conditions)
    plain.float32 = None
    with refusals_end():
        loop.run(plain, low=False)
    recorder = _recorder(conditions)
    recorder.float32 = Infinities(plain.program.forward)
    model, instance, retained, idle = loop.run(recorder, low=True)
    names = {id(p): name for name, p in model.named_parameters()}
    held_parameters = [p for group in instance.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
    low = {names.get(id(p), "a parameter"): p for p in held_parameters if p.dtype in LOW and p.requires_grad}
    built = low_tensors(case, conditions, case.realise(seed=conditions.seed).model)[0] if low else []
    lines = {tensor.name: tensor for tensor in built}
    return TrainingRecord(
        recorder.program,
        train,
        [lines.get(name) or LowTensor(name, p.dtype, _cast_place(p, recorder, train)) for name, p in low.items()],
        _states(instance, names, recorder),
        _kept(retained, recorder),
        idle,
    )


@dataclass(frozen=True)
class _Loop:
    """Iterations of a user's training step."""

    case: Case
    conditions: Conditions
    train: TrainingStep
    optimizer: MakeOptimizer | None

    def run(
        self, recorder: Recorder, *, low: bool
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Any], list[Place]]:
        """Run the iterations under ``recorder``; without ``low`` the regions and the scaler are disabled.

        Returns the model, the optimizer, the retained values, and the places of steps without gradients.
        """
        device, precision, seed = self.conditions.device, self.conditions.precision, self.conditions.seed
        copied = self.case.realise(seed=seed).on(device.torch_device)
        recorder.name(copied.model, copied.batch)
        instance = made_of([p for p in copied.model.parameters() if p.requires_grad], self.optimizer or AdamW)
        scaler = RecordedScaler(recorder, device.type, enabled=low and precision.name == "fp16")
        recorded_case = replace(self.case, loss=recorder.inside_loss(self.case.loss))
        retained: dict[str, Any] = {}
        device_or_recorder: Any = GivenDevice(device, recorder)
        idle = idle_steps(instance)
        with _quiet(self.conditions), recorder.on():
            for index in range(_ITERATIONS):
                recorder.stage = index
                scaler.begin()
                iteration = TrainingIteration(
                    copied.model, copied.batch, instance, scaler, index, recorded_case, device_or_recorder, precision,
                    low=low, kept=retained,
                )  # fmt: skip
                with seeded(seed + index):
                    self.train(iteration)
        return copied.model, instance, retained, idle


def _cast_place(parameter: torch.Tensor, recorder: Recorder, train: TrainingStep) -> Place:
    """Return the place at which a training step cast a parameter, or else the first line of the step."""
    casts = (call for call in recorder.program.forward if call.is_own_cast and call.dtype is parameter.dtype)
    shape = tuple(parameter.shape)
    cast = next((call for call in casts if call.results[0][1] == shape and call.module is None), None)
    return Place(line=definition_of(train)) if cast is None else cast.place


def _states(optimizer: torch.optim.Optimizer, names: Mapping[int, str], recorder: Recorder) -> list[LowTensor]:
    return [
        _low_tensor(f"{entry} of {names.get(id(parameter), 'a parameter')}", value, recorder)
        for parameter, state in optimizer.state.items()
        if isinstance(state, Mapping)
        for entry, value in state.items()
        if isinstance(value, torch.Tensor) and value.dtype in LOW
    ]


def _kept(retained: Mapping[str, Any], recorder: Recorder) -> list[LowTensor]:
    tensors = []
    for name, value in retained.items():
        if isinstance(value, torch.nn.Module):
            named = [*value.named_parameters(), *value.named_buffers()]
        else:
            named = list(named_tensors(value, objects=True))
        tensors += [
            _low_tensor(f"kept[{name!r}]{f'.{part}' if part else ''}", tensor, recorder)
            for part, tensor in named
            if tensor.dtype in LOW
        ]
    return tensors


def _low_tensor(name: str, tensor: torch.Tensor, recorder: Recorder) -> LowTensor:
    call = recorder.producer_of(tensor)
    return LowTensor(name, tensor.dtype, None if call is None else call.place)


@dataclass
class EvaluationRecord:
    """Recorded evaluation.

    ``metrics`` are the returned one-element low-precision tensors, ``parameters`` the parameters that the evaluation
    has cast to a low dtype.
    """

    program: Program
    metrics: list[tuple[str, Call | None, torch.dtype]]
    parameters: list[LowTensor]


def record_evaluation(case: Case, conditions: Conditions, evaluate: Callable[[Any], Any]) -> EvaluationRecord:
    """Run ``evaluate`` once under a recorder; exceptions are passed on.

    The infinities of a run in float32, up to an exception, are recorded first.
    """
    plain = _recorder(conditions)
    plain.float32 = None
    with refusals_end():
        _evaluated(case, conditions, evaluate, plain, low=False)
    recorder = _recorder(conditions)
    recorder.float32 = Infinities(plain.program.forward)
    model, before, metrics = _evaluated(case, conditions, evaluate, recorder, low=True)
    tensors = named_tensors(metrics, objects=True) if metrics is not None else iter(())
    low = [(name, recorder.producer_of(x), x.dtype) for name, x in tensors if x.dtype in LOW and x.numel() == 1]
    cast = [
        _low_tensor(name, parameter, recorder)
        for name, parameter in model.named_parameters()
        if parameter.dtype in LOW and before[name] not in LOW
    ]
    return EvaluationRecord(recorder.program, low, cast)


def _evaluated(
    case: Case, conditions: Conditions, evaluate: Callable[[Any], Any], recorder: Recorder, *, low: bool
) -> tuple[torch.nn.Module, dict[str, torch.dtype], Any]:
    """Return the model, the dtypes of its parameters before the evaluation, and what ``evaluate`` returns."""
    copied = case.realise(seed=conditions.seed).on(conditions.device.torch_device)
    recorder.name(copied.model, copied.batch)
    recorded_case = replace(case, loss=recorder.inside_loss(case.loss))
    device: Any = GivenDevice(conditions.device, recorder)
    before = {name: parameter.dtype for name, parameter in copied.model.named_parameters()}
    with _quiet(conditions), recorder.on():
        metrics = evaluate(Evaluation(copied.model, copied.batch, recorded_case, device, conditions.precision, low=low))
    return copied.model, before, metrics


def run_evaluation(
    case: Case,
    conditions: Conditions,
    evaluate: Callable[[Any], Any],
    realised: Realised,
    scope: contextlib.AbstractContextManager[object],
) -> Any:
    """Return what ``evaluate`` returns for a model and a batch, run as it is recorded, within ``scope``."""
    with _quiet(conditions), scope:
        return evaluate(Evaluation(realised.model, realised.batch, case, conditions.device, conditions.precision))


def _recorder(conditions: Conditions) -> Recorder:
    return Recorder(conditions.device.type, Program(conditions.precision.dtype))


@contextlib.contextmanager
def _quiet(conditions: Conditions) -> Iterator[None]:
    """Seed, compute float32 in IEEE arithmetic, run without Dynamo, and restore states that the user's code changed.

    Dynamo is disabled because a recorder does not receive the calls inside a compiled graph.
    """
    device_type = conditions.device.type
    state = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type), torch.get_default_dtype()
    try:
        with _still(conditions):
            yield
    finally:
        torch.set_autocast_enabled(device_type, state[0])
        torch.set_autocast_dtype(device_type, state[1])
        torch.set_default_dtype(state[2])


@contextlib.contextmanager
def _still(conditions: Conditions) -> Iterator[None]:
    with seeded(conditions.seed), float32_precision("ieee"), torch.compiler.set_stance("force_eager"):
        yield


def _is_finite(tensor: torch.Tensor) -> bool:
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())


def _written(model: torch.nn.Module, before: Mapping[str, int], recorder: Recorder) -> dict[str, Call | None]:
    """Return the names of buffers that were written to or replaced, with the calls that produced their values."""
    makers = {name: (id(value), recorder.producer_of(value)) for name, value in model.named_buffers()}
    return {name: maker for name, (new, maker) in makers.items() if maker is not None or before.get(name) != new}
