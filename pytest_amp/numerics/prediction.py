"""Predict a case in mixed precision: its exact values, and the error that rounding should cause.

Only ``predict`` selects the method: a run of the case with manual casts and, on device types whose kernels were
compared with the models of the rounding oracle (``ORACLE``), that oracle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from pytest_amp.account import receive
from pytest_amp.cases import Case, Realised, passes
from pytest_amp.devices import Device, find_device
from pytest_amp.devices.region import region_state
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics import oracle, tolerance
from pytest_amp.numerics.errors import is_inexact, norm, relative_error
from pytest_amp.numerics.loss_scale import at_largest_scale
from pytest_amp.numerics.manual_cast_mode import manual_casts, rules_are_known
from pytest_amp.numerics.nonfinite import NotFinite, origin_in_step
from pytest_amp.numerics.step import Region, Step, run_step
from pytest_amp.numerics.widened import float64_in_region
from pytest_amp.precision import Precision
from pytest_amp.text.quoted import quoted

__tracebackhide__ = is_usage_error

#: The device types on which the rounding models were compared with the kernels.
ORACLE = frozenset({"cpu", "cuda"})


@dataclass(frozen=True)
class Prediction:
    """Predicted values of each tensor (names of ``Step.named``): ``exact`` in float64, ``reference`` by manual casts.

    ``noise[name]`` is the error that mixed precision should have: E(predicted, exact) if the rounding oracle has a
    prediction that is finite where manual casts are, otherwise E(reference, exact). The larger of both is used for all
    tensors if the step has ``unmodelled`` operators, and always for tensors with fewer elements than
    ``tolerance.ENOUGH``, whose errors may be small by chance: of two independent draws of one element's error, the
    first is more than twice the second in 3 of 10.

    Errors are relative to ``sizes[name]``: the norm of the exact tensor or, for a gradient whose norm is negligible
    relative to the whole gradient, the average norm of a tensor with its number of elements.

    ``loss_scale`` is the loss scale of the reference. ``same_device`` is whether the reference ran on the device
    itself, and ``region`` is the region in which it ran.
    """

    exact: Step
    reference: Step
    noise: Mapping[str, float]
    sizes: Mapping[str, float]
    loss_scale: float
    same_device: bool
    region: Region
    predicted: Step | None = None
    unmodelled: frozenset[str] = frozenset()

    def vanishes(self, name: str) -> bool:
        """Return whether the exact tensor is zero up to cancellation error, which the error check covers."""
        size = norm(self.exact.named()[name])
        return size == 0 or size < self.sizes[name]

    @property
    def whose(self) -> str:
        """The name of the source of the noise, for failures."""
        return "manual casts" if self.predicted is None else "the predicted rounding"


def predict(case: Case, realised: Realised, device: Device, precision: Precision, *, seed: int) -> Prediction:
    """Run ``realised`` in float64 and, with manual casts, in mixed precision.

    Autocast is enabled during manual casts, since ``custom_fwd``, checkpoints, recurrent layers and extensions query
    its state; its kernels are not called. If the spec has no rules for the device type, the reference runs on the CPU
    by the CPU's rules. Its noise is then only that of the dtype, and bitwise equality is not checked.

    In fp16 the loss scale is the largest power of two, from 65536 down in steps of 4, for which the gradients of the
    reference, and those of the prediction, are finite. If those of the prediction are finite at none, there is no
    prediction. Raises AmpFailure if the case does not run in float64, or is not finite at any scale.
    """
    same_device = rules_are_known(device.type)
    exact = exact_step(case, realised, device, seed=seed)
    reference_device = device if same_device else find_device("cpu")
    manual = _ManualReference(case, realised, reference_device, precision, seed)
    reference, region = manual.step()
    sizes = _sizes(exact)
    noise = _errors(reference, exact, sizes)
    by_casts = Prediction(exact, reference, noise, sizes, reference.loss_scale, same_device, region)
    if not _is_followed(device):
        return by_casts
    predictor = oracle.Predictor(device.type, rounds=True)

    def predicted_at(loss_scale: float) -> Step:
        on_device = realised.on(device.torch_device)
        return oracle.run_virtual(case, on_device, region, predictor, seed=seed, loss_scale=loss_scale).step

    try:
        # Gradients that are near the end of float16 in the reference may be beyond it in the prediction.
        scale, predicted = at_largest_scale(predicted_at, _ends_search, precision, first=reference.loss_scale)
    except oracle.CannotFollow as error:
        receive(error)
        return by_casts
    if set(_nonfinite(predicted)) - set(_nonfinite(reference)):  # the model of an operator does not describe its kernel
        return by_casts
    if scale < reference.loss_scale:
        reference = manual.at(scale, region)
        noise = _errors(reference, exact, sizes)
        by_casts = replace(by_casts, reference=reference, noise=noise, loss_scale=scale)
    predicted_noise = _errors(predicted, exact, sizes)
    small = {name for name, value in exact.named().items() if value.numel() < tolerance.ENOUGH}
    for name in predicted_noise.keys() & noise.keys():
        if predictor.unmodelled or name in small:
            predicted_noise[name] = max(predicted_noise[name], noise[name])
    return replace(by_casts, noise=predicted_noise, predicted=predicted, unmodelled=frozenset(predictor.unmodelled))


def _is_followed(device: Device) -> bool:
    return rules_are_known(device.type) and device.type in ORACLE


def exact_step(case: Case, realised: Realised, device: Device, *, seed: int) -> Step:
    """Run the step in float64, from which errors are measured."""
    if _is_followed(device):
        try:
            return oracle.run_exact(case, realised.on(device.torch_device), device.type, seed=seed).step
        except oracle.CannotFollow as error:
            return _without_oracle(case, realised, device, error, seed=seed)
    return _in_float64(case, realised, device, seed=seed)


def _without_oracle(case: Case, realised: Realised, device: Device, lost: AmpFailure, *, seed: int) -> Step:
    """Run the step of a model that the oracle cannot follow, in float64 or, if that fails, in float32.

    Raises ``lost`` if the model runs in neither.
    """
    receive(lost)
    try:
        return _in_float64(case, realised, device, seed=seed)
    except AmpFailure as failure:
        receive(failure)
    try:
        return run_step(case, realised.on(device.torch_device), contextlib.nullcontext, seed=seed)
    except Exception:  # noqa: BLE001  # the model's exception was reported before
        raise lost from None


def step_errors(step: Step, known: Step, exact: Step) -> dict[str, float]:
    """Return E(step, known) of each floating or complex tensor that all three steps have, relative to ``exact``."""
    errors = _errors(step, known, _sizes(exact))
    return {name: errors[name] for name, value in exact.named().items() if name in errors and is_inexact(value)}


def _errors(step: Step, exact: Step, sizes: Mapping[str, float]) -> dict[str, float]:
    """Return E(step, exact) of each tensor that both steps have, and that has a size."""
    actual, known = step.named(), exact.named()
    names = known.keys() & actual.keys() & sizes.keys()
    return {name: relative_error(actual[name], known[name], scale=sizes[name]) for name in names}


def reference_step(case: Case, realised: Realised, device: Device, precision: Precision, *, seed: int) -> Step:
    """Run the step with manual casts, at the largest loss scale with finite gradients."""
    target = device if rules_are_known(device.type) else find_device("cpu")
    return _ManualReference(case, realised, target, precision, seed).step()[0]


def _in_float64(case: Case, realised: Realised, device: Device, *, seed: int) -> Step:
    """Run the step in float64, on ``device`` if it supports float64, else on the CPU."""
    target = device.torch_device if _has_float64(device) else torch.device("cpu")
    try:
        return run_step(case, realised.on(target, torch.float64), _float64_default, seed=seed)
    except Exception as error:
        if passes(error):
            raise
        with contextlib.suppress(Exception):  # some models run only inside a region
            return run_step(case, realised.on(target, torch.float64), lambda: float64_in_region(target.type), seed=seed)
        raise AmpFailure(
            f"{case.name} does not run in float64, so there is no exact reference",
            now=quoted(error),
            likely="its forward pass names float32: take the dtype from a parameter or an input",
        ) from error


def _has_float64(device: Device) -> bool:
    try:
        torch.ones(1, dtype=torch.float64, device=device.torch_device)
    except (RuntimeError, TypeError):  # Metal does not support float64
        return False
    return True


@contextlib.contextmanager
def _float64_default() -> Iterator[None]:
    """Make float64 the default dtype of new tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def manual_region(device: Device, precision: Precision, *, inside: bool) -> Region:
    """Return a region of mixed precision by manual casts, with the state of autocast enabled (``inside``) or unchanged.

    The state is set without ``torch.autocast``, so that a fault of that class does not affect the reference.
    """

    @contextlib.contextmanager
    def region() -> Iterator[None]:
        if inside:
            with region_state(device.type, precision.dtype), manual_casts(device.type, precision.dtype):
                yield
        else:
            with manual_casts(device.type, precision.dtype):
                yield

    return region


@dataclass(frozen=True)
class _ManualReference:
    """Reference run of a case, with manual casts."""

    case: Case
    realised: Realised
    device: Device
    precision: Precision
    seed: int

    def step(self) -> tuple[Step, Region]:
        """Run the step, and return it and its region, in which autocast is enabled for models that query its state."""
        region = manual_region(self.device, self.precision, inside=True)
        return self._scaled(region), region

    def at(self, loss_scale: float, region: Region) -> Step:
        """Run the step in ``region`` at a loss scale."""
        realised = self.realised.on(self.device.torch_device)
        return run_step(self.case, realised, region, seed=self.seed, loss_scale=loss_scale)

    def _scaled(self, region: Region) -> Step:
        """Run the step at the largest loss scale that keeps gradients finite."""
        loss_scale, step = at_largest_scale(partial(self.at, region=region), _ends_search, self.precision)
        bad = _nonfinite(step)
        if bad:
            raise self._not_finite(bad, region, loss_scale)
        return step

    def _not_finite(self, bad: list[str], region: Region, loss_scale: float) -> NotFinite:
        """Return the failure that names the operator, in the user's own region or with manual casts."""
        device, dtype = self.device.torch_device, self.precision.dtype
        regions: tuple[Region, ...] = (lambda: self.device.autocast(dtype), region)
        origins = (
            origin_in_step(self.case, self.realised, device, tried_region, seed=self.seed, loss_scale=loss_scale)
            for tried_region in regions
        )
        return NotFinite(
            f"{self.case.name} is not finite in {self.precision.name} on {self.device.key}, with manual casts, too "
            f"({', '.join(bad[:3])}{f' and {len(bad) - 3} more' if len(bad) > 3 else ''})",
            next((origin for origin in origins if origin is not None), None),
        )


def _nonfinite(step: Step) -> list[str]:
    return [name for name, tensor in step.named().items() if not tensor.isfinite().all()]


def _ends_search(step: Step) -> bool:
    """Return whether to stop decreasing the scale: all is finite, or an output is not, whatever the scale."""
    names = _nonfinite(step)
    return not names or any(name.startswith("output.") for name in names)


def _sizes(exact: Step) -> dict[str, float]:
    """Return the sizes that errors are relative to; see ``Prediction``."""
    named = exact.named()
    sizes = {name: norm(tensor) for name, tensor in named.items()}
    gradients = [name for name in named if not name.startswith(("output.", "buffer."))]
    elements = sum(named[name].numel() for name in gradients)
    total = sum(sizes[name] ** 2 for name in gradients) ** 0.5
    for name in gradients:
        average = total * (named[name].numel() / elements) ** 0.5
        if sizes[name] < VANISHING * average:
            sizes[name] = average
    return sizes


#: Ratio to the average norm below which a gradient is only cancellation error; the unit roundoff of float64 is 2**-53.
VANISHING = 2.0**-40
