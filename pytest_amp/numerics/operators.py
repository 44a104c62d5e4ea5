"""Check one operator at several sizes: its result and gradients must round as its rounding model says at every size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_amp import torch_private
from pytest_amp.cases import Case
from pytest_amp.devices.generators import seed_torch
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import oracle, tolerance
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import is_hollow, relative_error
from pytest_amp.numerics.oracle import sums, verdict
from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.module_places import Places
from pytest_amp.numerics.oracle.observer import ObservedCall, Observer
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.predicted import fault_failure
from pytest_amp.numerics.prediction import manual_region
from pytest_amp.numerics.redraw import redrawn
from pytest_amp.numerics.step import run_step
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.record import Observe
from pytest_amp.rules import spec
from pytest_amp.rules.samples import Sample, samples

#: Seed offset for random numbers that are used only once.
_OTHER = 1_000_003


@dataclass(frozen=True)
class MeasuredOperator:
    """Measurement of one operator at one size: the excess by tensor (``result``, ``gradient.0``), and further faults.

    ``excess`` is E(amp, exact) in units of the predicted rounding; for float32 tensors, in units of the error above
    which they were rounded to the low dtype (``oracle.sums.most_of_float32``). ``shares`` is the rounding signature.
    """

    excess: Mapping[str, float]
    faults: tuple[verdict.Fault, ...]
    shares: Mapping[str, float]
    hollow: tuple[str, ...]
    dtypes: Mapping[str, torch.dtype]
    problems: tuple[ObservedCall, ...]


def measure_operator(
    name: str,
    function: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    conditions: Conditions,
    *,
    has_regions: bool = False,
) -> MeasuredOperator:
    """Run ``function`` forward and backward in mixed precision on ``arguments`` of any dtype; compare it with float64.

    Gradients are computed for the floating-point arguments, with a random incoming gradient. If a ``function``
    ``has_regions``, its prediction runs them, too.
    """
    low, device, seed = conditions.precision.dtype, conditions.device, conditions.seed
    case = _case_of(name, function, arguments, seed=seed)
    realised = case.realise(seed=seed)
    region = manual_region(device, conditions.precision, inside=has_regions)
    predictors = [oracle.Predictor(device.type, rounds=rounds) for rounds in (False, True)]
    exact, predicted = (
        oracle.run_virtual(case, realised.on(device.torch_device), region, predictor, seed=seed)
        for predictor in predictors
    )
    real = realised.on(device.torch_device)
    observer = Observer(device.type, low, Places(real.model))
    with observer.on(spec.expected(device.type, torch.__version__)):
        step = run_step(case, real, conditions.region, seed=seed)
    actual, known, model = (_tensors(result.named()) for result in (step, exact.step, predicted.step))
    # A float32 result of float32 inputs that has low-precision values only was rounded, even if its prediction has
    # low-precision values only, too.
    kept_low = any(call.model.name is ModelName.RUNNING_SUM and low in call.given for call in observer.observed_calls)
    takes_float32 = any(x.dtype == torch.float32 for x in arguments) and not kept_low
    excess = {key: _excess(value, model[key], known[key], low) for key, value in actual.items()}
    hollow = (
        key
        for key, value in actual.items()
        if value.dtype not in LOW
        and is_hollow(value, low)
        and (takes_float32 or not is_hollow(model[key].to(torch.float32), low))
    )
    if predictors[1].unmodelled:
        excess = {}  # the rounding of the kernels is known only up to a factor, which the faults respect
    dtypes = {key: value.dtype for key, value in actual.items()}
    return _measured(name, observer.observed_calls, conditions, excess=excess, hollow=tuple(hollow), dtypes=dtypes)


def _measured(  # noqa: PLR0913  # keywords of one measurement
    name: str,
    calls: Sequence[ObservedCall],
    conditions: Conditions,
    *,
    excess: Mapping[str, float],
    hollow: tuple[str, ...],
    dtypes: Mapping[str, torch.dtype],
) -> MeasuredOperator:
    """Return a measurement, with the faults, signatures and problems of the ``calls``."""
    return MeasuredOperator(
        excess,
        tuple(verdict.faults(calls, conditions.precision.dtype, conditions.tolerance_scale)),
        oracle.trace_of(name, calls, conditions.device.type).signatures(),
        hollow,
        dtypes,
        tuple(call for call in calls if call.problem is not None),
    )


def _case_of(name: str, function: Callable[..., Tensor], arguments: Sequence[Tensor], *, seed: int) -> Case:
    """Return ``function`` as a case without a model: copies of ``arguments``, and a random incoming gradient."""

    def batch() -> list[Tensor]:
        return [x.clone().requires_grad_() if x.is_floating_point() else x for x in arguments]

    def loss(_model: torch.nn.Module, inputs: list[Tensor]) -> dict[str, Tensor]:
        result = function(*inputs)
        with torch.random.fork_rng(devices=[]):
            seed_torch(seed + _OTHER)  # another seed than the arguments', or the gradient would be the argument itself
            weights = torch.randn(result.shape, device="cpu").to(result.device, result.dtype)
        # A custom product, whose gradient is exactly the weights.
        return {"loss": _Weighed.apply(result, weights), "result": result}  # type: ignore[no-untyped-call]

    return Case(name, torch.nn.Identity, batch, loss)


def _excess(value: Tensor, model: Tensor, exact: Tensor, low: torch.dtype) -> float:
    """Return the excess of ``MeasuredOperator``: the error over the predicted rounding, or over float32's limit."""
    error, noise = _errors(value, model, exact)
    if value.dtype in LOW:
        return error / max(noise, tolerance.floor(value.numel(), sums.roundoff(value.dtype)))
    least = sums.most_of_float32(low)
    return error / noise if noise > least else max(error - noise, 0.0) / least


def _errors(value: Tensor, model: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return E(value, exact) and E(model, exact) over finite elements; inf if these differ between both."""
    finite = model.isfinite()
    if not torch.equal(value.isfinite().cpu(), finite.cpu()):
        return math.inf, relative_error(model[finite], exact[finite])
    return relative_error(value[finite], exact[finite]), relative_error(model[finite], exact[finite])


def measure_registered(overload: str, conditions: Conditions) -> dict[str, MeasuredOperator]:
    """Run each sample of a qualified overload under autocast, forward and, if it is differentiable, backward.

    Every operator that it consists of is compared with its rounding model on its real inputs; the result is by number
    of the sample. Samples are small, so that no error is averaged out in a sum: ``measure_operator`` is for long ones.
    Raises whatever the operator raises.
    """
    measured = {}
    for number, sample in enumerate(samples(overload)):
        calls = _observed(overload, sample, conditions)
        measured[str(number)] = _measured(overload, calls, conditions, excess={}, hollow=(), dtypes={})
    return measured


def _observed(overload: str, sample: Sample, conditions: Conditions) -> tuple[ObservedCall, ...]:
    """Observe a sample with gradients of all real arguments, else of the first, else of none: some have no gradient."""
    leaves, spec_of = torch_private.flat((sample.arguments, dict(sample.keywords)))
    real = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and _is_real(leaf)]
    for differentiated in (real, real[:1], []):
        seed_torch(conditions.seed)
        moved = [
            leaf.detach().to(conditions.device.torch_device, copy=True).requires_grad_(number in differentiated)
            if isinstance(leaf, Tensor)
            else leaf
            for number, leaf in enumerate(leaves)
        ]
        args, kwargs = torch_private.unflat(moved, spec_of)
        observer = Observer(conditions.device.type, conditions.precision.dtype)
        try:
            with observer.on({}), float32_precision("ieee"):
                with conditions.region():
                    results = torch_private.flat(torch_private.find_overload(overload)(*args, **kwargs))[0]
                ends = [
                    result
                    for result in results
                    if isinstance(result, Tensor) and result.requires_grad and result.numel()
                ]
                if ends:
                    torch.autograd.backward(ends, [_incoming(end) for end in ends])
        except RuntimeError:
            if not differentiated:
                raise
        else:
            return tuple(observer.observed_calls)
    raise AssertionError


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _incoming(value: Tensor) -> Tensor:
    return torch.randn(value.shape, dtype=torch.float32, device="cpu").to(value.device, value.dtype)


def confirmed_operator(draw: Callable[[], MeasuredOperator], *, seed: int) -> MeasuredOperator:
    """Seed torch and return the measurement of ``draw``; if an excess is doubtful, with the median of three draws.

    As for tensors, a single draw is no fault: a single element whose rounding flips can make most of the error of a few
    hundred. An excess that is not finite is not drawn again.
    """

    def seeded_draw(seed: int) -> MeasuredOperator:
        seed_torch(seed)
        return draw()

    first = seeded_draw(seed)
    doubtful = [key for key, value in first.excess.items() if value > verdict.EXCESS]
    if not doubtful or not all(math.isfinite(first.excess[key]) for key in doubtful):
        return first
    draws = [first, *redrawn(seeded_draw, seed)]
    medians = {
        key: statistics.median(measurement.excess.get(key, 0.0) for measurement in draws) for key in first.excess
    }
    return replace(first, excess=medians)


class _Weighed(torch.autograd.Function):
    """Sum of products whose gradient is the weights in the dtype of ``x``."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return (x.detach() * weights).sum(dtype=torch.float32)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return weights * gradients[0].to(weights.dtype), None


def _tensors(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the result and the arguments' gradients, without the loss, which is the check's own."""
    tensors = {name: value for name, value in named.items() if name != "output.loss" and value.is_floating_point()}
    return {
        name.replace("output.result", "result").replace("input", "gradient"): value for name, value in tensors.items()
    }


def check_operator(name: str, sizes: Mapping[str, MeasuredOperator], conditions: Conditions, observe: Observe) -> None:
    """Compare the measurements of an operator at each size with its model.

    Raises AmpFailure for an operator with a larger error than its rounding (bounds: ``oracle.verdict``), for a float32
    result that was rounded to the low dtype, and for an error that grows with the size.
    """
    for size, measured in sizes.items():
        for key, value in measured.excess.items():
            limit = verdict.EXCESS * conditions.tolerance_scale
            observe(f"{name}/{size}/{key}", value, kind="ratio", unit="noise", allowed=limit)
        if measured.shares:
            least = min(measured.shares.values())
            observe(f"{name}/{size}/signature", least, kind="ratio", unit="share of elements")
        _check_size(f"{name}, {size}", measured, conditions)


def _check_size(name: str, measured: MeasuredOperator, conditions: Conditions) -> None:
    if measured.problems:
        lost = measured.problems[0]
        raise AmpFailure(f"{name}: the rounding oracle cannot follow {lost.operator}", now=lost.problem)
    if measured.faults:
        fault = measured.faults[0]
        what = f"{name}: {fault.operator}, {fault.call.place.direction.value}, {fault.what} under {conditions}"
        raise fault_failure(what, fault, conditions)
    if measured.hollow:
        raise AmpFailure(
            f"{name}: {measured.hollow[0]} is float32, but {conditions.precision.dtype_name} represents all its values",
            label_before="predicted",
            before="values that the low dtype cannot represent",
            now=conditions.now("it was rounded to the low dtype"),
            likely="an operator rounds an intermediate result, and casts its result back",
        )
    worst = max(measured.excess, key=lambda key: measured.excess[key], default="")
    if worst and measured.excess[worst] > verdict.EXCESS * conditions.tolerance_scale:
        raise AmpFailure(
            f"{name}: the error of {worst} is {measured.excess[worst]:.3g} times its predicted rounding "
            f"under {conditions}",
            label_before="predicted",
            before=f"at most {verdict.EXCESS} times, at every length",
            now=conditions.now(f"{measured.excess[worst]:.3g}"),
            likely="the operator does not follow its rule, or computes or accumulates in the low dtype",
        )
