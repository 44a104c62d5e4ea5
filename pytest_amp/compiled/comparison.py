"""Comparison of a compiled training step with the same step in eager: ``Amp.check_compiled``.

The bounds are those of ``pytest_amp.numerics.tolerance``, which derives them: a compiled step may have the error that
eager may have, and no more. A fused kernel keeps in float32 what eager rounds between two kernels, and may be more
exact: only the median error of its tensors must be at least LEAST of the noise.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_amp.cases import Case, Realised, in_one_line, passes
from pytest_amp.compiled.causes import BACKWARD_OFF, cause_in_backward, cause_of_error, cause_without_graph, known_cause
from pytest_amp.compiled.compilation import Compilation, Where
from pytest_amp.compiled.distance import StepDistance, equal_names, have_equal_forward
from pytest_amp.compiled.graph_by_graph import graph_by_graph
from pytest_amp.compiled.least import check_least
from pytest_amp.devices import DeviceKind
from pytest_amp.devices.generators import seed_torch
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics import Conditions, Prediction, Step, exceeds, predict, run_step, tolerance
from pytest_amp.numerics.cancellation import float32_errors
from pytest_amp.numerics.case_run import CaseRun
from pytest_amp.numerics.chance import not_acquitted
from pytest_amp.numerics.compare import Compared, compare, confirmed
from pytest_amp.numerics.draws import Draws, NotReplayed
from pytest_amp.numerics.nonfinite import origin_in_step
from pytest_amp.numerics.realised import realise, realise_and_run_float32
from pytest_amp.numerics.step import in_words
from pytest_amp.precision import dtype_name
from pytest_amp.record import Observe
from pytest_amp.torch_private import compiled_graphs, graph_breaks, numpy_draws_itself, random_as_eager, taken_apart

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class _Run:
    """Shared state of the checks of one compiled case, which all use the same compiled function."""

    case: Case
    compiled: Case
    compilation: Compilation
    conditions: Conditions
    _realised: dict[int, Realised] = field(default_factory=dict)

    def realised(self, seed: int) -> Realised:
        """Return the model and the batch of a seed, with the draws of its step, recorded once for all of its steps."""
        if seed not in self._realised:
            self._realised[seed] = realise(self.case, self.conditions, seed=seed)
        return self._realised[seed]

    def describe(self, name: str) -> str:
        """Return the name of a tensor in failures."""
        return f"{self.case.name}, compiled ({self.compilation}): {in_words(name)} under {self.conditions}"

    def compiled_step(self, seed: int, loss_scale: float) -> Step:
        """Run one compiled step, next to one in eager."""
        return self.eager_and_compiled(seed, loss_scale)[1]

    def eager_and_compiled(self, seed: int, loss_scale: float) -> tuple[Step, Step]:
        """Run one step in eager and one compiled, on the same values."""
        eager = self._eager(self.realised(seed), seed, loss_scale)
        try:
            return eager, self._compiled(self.compiled, eager, seed, loss_scale)
        except RuntimeError as error:
            # An error of Dynamo's own names the user's line.
            if passes(error) or type(error).__module__.startswith("torch._dynamo"):
                raise
            raise self._does_not_run(error, seed) from error

    def _does_not_run(self, error: RuntimeError, seed: int) -> AmpFailure:
        """Return the failure for an error of the compiled step alone."""

        def in_float32() -> None:
            realised = self.realised(seed).on(self.conditions.device.torch_device)
            run_step(self.compiled, realised, contextlib.nullcontext, seed=seed, replay=False)

        is_around = self.compilation.region is Where.AROUND
        return AmpFailure(
            f"{self.case.name}, compiled ({self.compilation}), does not run under {self.conditions}",
            label_before="eager",
            before="it runs in eager",
            now=self.conditions.now(in_one_line(error)),
            likely=cause_of_error(error, in_float32 if is_around else None),
        )

    def _compiled(self, case: Case, eager: Step, seed: int, loss_scale: float) -> Step:
        """Run one step of a compiled case after the step in eager."""
        device, region = self.conditions.device.torch_device, self.conditions.region
        outside = region if self.compilation.region is Where.AROUND else contextlib.nullcontext
        with contextlib.ExitStack() as stack:
            if _has_drawn(device, seed):
                stack.enter_context(random_as_eager())
            if not self.compilation.fullgraph:
                stack.enter_context(numpy_draws_itself())
            compiled = run_step(
                case, self.realised(seed).on(device), outside, seed=seed, loss_scale=loss_scale, replay=False
            )
        # CUDA graph trees reuse the memory of their outputs.
        return replace(
            compiled,
            outputs={name: value.clone() for name, value in compiled.outputs.items()},
            gradients=_used_gradients(compiled.gradients, eager.gradients),
            inputs=_used_gradients(compiled.inputs, eager.inputs),
        )

    def _eager(self, realised: Realised, seed: int, loss_scale: float, *, cache: bool = True) -> Step:
        """Run the step in eager, with its own random numbers; without ``cache`` each use of a weight casts it."""
        conditions = self.conditions
        here = realised.on(conditions.device.torch_device)

        def region() -> contextlib.AbstractContextManager[object]:
            return conditions.device.autocast(conditions.precision.dtype, cache_enabled=cache)

        return run_step(self.case, here, region, seed=seed, loss_scale=loss_scale, replay=False)

    def eager_by_graphs(self, eager: Step, loss_scale: float) -> Step | None:
        """Run the step in eager graph by graph, each with its own backward pass, as the compiled step has them.

        Return None if autograd refuses it, for example because a graph changes its input in place.
        """
        case = self.compilation.case(self.case, self.conditions, graph_by_graph)
        try:
            return self._compiled(case, eager, self.conditions.seed, loss_scale)
        except RuntimeError as error:
            if passes(error):  # a fault of the machine
                raise
            return None

    def eager_by_other_attention(self, loss_scale: float) -> Iterator[Step]:
        """Yield the step in eager with each attention kernel alone, on an accelerator.

        torch selects a kernel by the properties of a tensor, of which a fake tensor in a trace has fewer.
        """
        if self.conditions.device.kind is DeviceKind.CPU:
            return
        realised = self.realised(self.conditions.seed)
        for kernel in _KERNELS:
            with contextlib.suppress(RuntimeError), sdpa_kernel([kernel]):  # a kernel may not support these tensors
                yield self._eager(realised, self.conditions.seed, loss_scale)

    def eager_as_traced(self, loss_scale: float) -> Iterator[Step]:
        """Yield the step in eager as a trace runs it.

        AOTAutograd traces without autocast's cache: a weight that is used several times is cast for each use, and the
        gradients of its uses are added in float32. On an accelerator, and on a CPU if the step draws random numbers,
        operators are decomposed, too.
        """
        realised, seed = self.realised(self.conditions.seed), self.conditions.seed
        yield self._eager(realised, seed, loss_scale, cache=False)
        for cache in (True, False):
            with taken_apart():
                step = self._eager(realised, seed, loss_scale, cache=cache)
            if not _has_drawn(torch.device("cpu"), seed) and self.conditions.device.kind is DeviceKind.CPU:
                return
            yield step


#: Attention kernels, of which a trace on an accelerator may select another one than eager.
_KERNELS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)


def _has_drawn(device: torch.device, seed: int) -> bool:
    """Return whether the generator of the CPU or of ``device`` has advanced since ``seed``; reset both to it."""
    there = [torch] if device.type == "cpu" else [torch, torch.get_device_module(device)]
    states = [generator.get_rng_state() for generator in there]
    seed_torch(seed)
    return any(
        not torch.equal(generator.get_rng_state(), state) for generator, state in zip(there, states, strict=True)
    )


def _used_gradients(
    tensors: Mapping[str, torch.Tensor | None], eager: Mapping[str, torch.Tensor | None]
) -> dict[str, torch.Tensor | None]:
    """Copy the gradients of a compiled step, without those that are zero where eager has none.

    Compiled code is a ``torch.autograd.Function``, whose backward pass gets zeros for a result that nothing used
    (``set_materialize_grads`` in torch/autograd/function.py): a result that another graph does not need, say.
    """
    return {
        name: None if value is None or (eager.get(name) is None and not value.any()) else value.clone()
        for name, value in tensors.items()
    }


def eager_and_compiled(
    case: Case, compilation: Compilation, conditions: Conditions, *, loss_scale: float = 1.0
) -> tuple[Step, Step, int]:
    """Run one step in eager and one compiled, and count the graphs. Raises AmpFailure if there are none."""
    return _first(_Run(case, compilation.case(case, conditions), compilation, conditions), loss_scale)


def _first(run: _Run, loss_scale: float) -> tuple[Step, Step, int]:
    before, breaks_before = compiled_graphs(), graph_breaks()
    eager, compiled = run.eager_and_compiled(run.conditions.seed, loss_scale)
    graphs = compiled_graphs() - before
    if not graphs:
        raise AmpFailure(
            f"{run.case.name}: torch.compile ({run.compilation}) compiled nothing, so there is nothing to compare with "
            "eager",
            now="no graph was handed to the back end",
            likely=cause_without_graph(graph_breaks() - breaks_before),
        )
    return eager, compiled, graphs


def check_compiled(
    case: Case, compilation: Compilation, conditions: Conditions, observe: Observe, *, bits: bool = False
) -> None:
    """Run ``case`` compiled as ``compilation`` specifies, and compare it with eager.

    See ``Amp.check_compiled`` for the comparison.

    With ``bits``, results of a back end without fusion must be bitwise equal to eager's on a CPU. This holds where
    AOTAutograd decomposes no operator of the case, which is torch's decision in each release.
    """
    # First, so that a case that does not run at all fails with its own error.
    realised, fp32 = realise_and_run_float32(case, conditions)
    prediction = predict(case, realised, conditions.device, conditions.precision, seed=conditions.seed)
    run = _Run(case, compilation.case(case, conditions), compilation, conditions, {conditions.seed: realised})
    eager, compiled_step, graphs = _first(run, prediction.loss_scale)
    u, name = conditions.precision.u, f"{case.name}/{compilation}"
    observe(f"{name}/graphs", graphs, kind="count")
    _check_dtypes(run, eager, compiled_step)
    _check_finite(run, eager, compiled_step, prediction)
    if isinstance(realised.draws, Draws) and (reason := realised.draws.explanation):
        warnings.warn(NotReplayed(f"{case.name}, compiled: {reason}. Its values are not compared"), stacklevel=2)
        return
    float32 = partial(float32_errors, case, realised, fp32, prediction, conditions)
    compared = compare(prediction, compiled_step, fp32, u=u, float32=float32)
    same_as_eager = equal_names(eager, compiled_step)
    worst = max(compared, key=lambda tensor: tensor.excess)
    limit = worst.factor * conditions.tolerance_scale
    observe(f"{name}/excess", worst.excess, kind="ratio", unit="noise", allowed=limit)
    observe(f"{name}/equal", len(same_as_eager) / len(compiled_step.named()), kind="ratio", unit="share of tensors")
    unequal = [tensor for tensor in compared if tensor.name not in same_as_eager]
    eager_run = CaseRun(case, realised, conditions, prediction, fp32, None)
    _check_errors(run, eager_run, _without_eagers_own(eager_run, eager, unequal))

    def without_cache() -> list[Compared]:
        return compare(prediction, next(run.eager_as_traced(prediction.loss_scale)), fp32, u=u)

    check_least(f"{case.name}, compiled ({compilation})", conditions, compared, without_cache)
    if not compilation.fuses:
        _check_same_kernels(
            run, eager, compiled_step, prediction, bits=bits and conditions.device.kind is DeviceKind.CPU, graphs=graphs
        )


def _check_dtypes(run: _Run, eager: Step, compiled: Step) -> None:
    """Check that a compiled step has eager's tensors, in the same order and dtypes."""
    expected = {name: dtype_name(value.dtype) for name, value in eager.named().items()}
    dtypes = {name: dtype_name(value.dtype) for name, value in compiled.named().items()}
    if list(expected.items()) == list(dtypes.items()):
        return
    differ = next((name for name in {**expected, **dtypes} if expected.get(name) != dtypes.get(name)), None)
    if differ is not None:
        before, now = expected.get(differ, "none"), dtypes.get(differ, "none")
    else:
        differ = next(name for name, other in zip(expected, dtypes, strict=True) if name != other)
        before, now = str(list(expected)[:6]), str(list(dtypes)[:6])
    raise AmpFailure(
        f"{run.describe(differ)} is not what it is in eager",
        label_before="eager",
        before=before,
        now=run.conditions.now(now),
        likely="the compiled function does not follow the region it is called in, or one inside it",
    )


def _check_finite(run: _Run, eager: Step, compiled: Step, prediction: Prediction) -> None:
    """Check that every tensor that is finite in eager is finite."""
    named, reference = compiled.named(), eager.named()
    bad = [name for name, value in named.items() if reference[name].isfinite().all() and not value.isfinite().all()]
    if bad:
        raise AmpFailure(
            f"{run.describe(bad[0])} is not finite",
            label_before="eager",
            before="finite, at the same loss scale",
            now=run.conditions.now(
                f"{int((~named[bad[0]].isfinite()).sum())} of {named[bad[0]].numel()} elements are not"
            ),
            likely=_likely_infinite(run, prediction.loss_scale),
        )


def _likely_infinite(run: _Run, loss_scale: float) -> str:
    """Return the likely cause of non-finite values of compiled code: an inf that eager makes finite, or its own."""
    conditions, device = run.conditions, run.conditions.device.torch_device
    realised = run.realised(conditions.seed)
    origin = origin_in_step(
        run.case, realised, device, conditions.region, seed=conditions.seed, loss_scale=loss_scale, hidden=True
    )
    if origin is not None:
        return f"{origin.now}, in eager, too, where later operators make it finite; take {origin.advice}"
    return "the compiled code itself: in eager every operator stays finite with these numbers" + _other_backend(run)


def _other_backend(run: _Run) -> str:
    return ': backend="aot_eager" tells whether the trace or the kernels are to blame' if run.compilation.fuses else ""


def _without_eagers_own(run: CaseRun, eager: Step, compared: Sequence[Compared]) -> list[Compared]:
    """Leave out tensors that are as far from exact in eager, if eager's step is acquitted: see ``numerics.chance``."""
    scale, u = run.conditions.tolerance_scale, run.conditions.precision.u
    bad = {tensor.name: tensor for tensor in compared if tensor.error > tensor.allowed * scale}
    if not bad:
        return list(compared)
    of_eager = [tensor for tensor in compare(run.prediction, eager, run.fp32, u=u) if tensor.name in bad]
    alike = [tensor for tensor in of_eager if bad[tensor.name].error <= tolerance.EXCESS * tensor.error]
    guilty = {tensor.name for tensor in not_acquitted(run, alike)}
    acquitted = {tensor.name for tensor in alike} - guilty
    return [tensor for tensor in compared if tensor.name not in acquitted]


def _check_errors(run: _Run, eager_run: CaseRun, compared: Sequence[Compared]) -> None:
    scale = run.conditions.tolerance_scale
    bad = sorted(
        (tensor for tensor in compared if exceeds(tensor.error, tensor.allowed * scale)),
        key=lambda tensor: -tensor.excess,
    )
    if not bad:
        return
    # Where compiled code decomposes or fuses operators, its roundings are an independent draw of the prediction's, as
    # those of a sum in another order are.
    if not confirmed(bad, run.case, run.conditions, run.compiled_step, limit=bad[0].factor, any_order=True):
        return
    worst, prediction = bad[0], eager_run.prediction

    def compare_again() -> list[Compared]:
        compiled = run.compiled_step(run.conditions.seed, prediction.loss_scale)
        return compare(prediction, compiled, eager_run.fp32, u=run.conditions.precision.u)

    raise AmpFailure(
        f"{run.describe(worst.name)} has an error of {worst.error:.3g}, more than the allowed "
        f"{worst.allowed * scale:.3g}",
        label_before="exact",
        before=f"relative L2 distance from float64; rounding explains {worst.noise:.3g}",
        now=run.conditions.now(f"{worst.error:.3g}; distance from eager float32 {worst.plain:.3g}"),
        likely=known_cause(eager_run.realised.model, worst.name, run.conditions)
        or cause_in_backward(compare_again, worst.name, scale)
        or f"the compiler casts elsewhere than eager does, reorders a sum, or its kernel is wrong{_other_backend(run)}",
    )


def _check_same_kernels(  # noqa: PLR0913  # both steps, and what is known of them
    run: _Run, eager: Step, compiled: Step, prediction: Prediction, *, bits: bool, graphs: int
) -> None:
    """Check that a back end without fusion, which calls eager's kernels or their parts, has eager's values or bits.

    On a CPU, a trace's dropout is another operator than eager's, and on an accelerator also interpolation and
    normalizations: such a case is compared with a step in eager that is decomposed as the trace.
    """
    u, scale = run.conditions.precision.u, run.conditions.tolerance_scale
    distance = StepDistance.between(eager, compiled, prediction, u)
    if distance.is_none(scale, bits=bits):
        return
    if graphs > 1:
        by_graphs = run.eager_by_graphs(eager, prediction.loss_scale)
        if by_graphs is not None and have_equal_forward(eager, by_graphs):
            distance = StepDistance.between(by_graphs, compiled, prediction, u)
        if distance.is_none(scale, bits=bits):
            return
    scaled_by = prediction.loss_scale
    for eager_run in itertools.chain(run.eager_as_traced(scaled_by), run.eager_by_other_attention(scaled_by)):
        distance = min(
            distance,
            StepDistance.between(eager_run, compiled, prediction, u),
            key=lambda distance_of_run: distance_of_run.median,
        )
        if distance.is_none(scale, bits=bits):
            return
    worst, more = distance.worst, len(distance.unequal) - 1
    raise AmpFailure(
        f"{run.describe(worst)} is not that of eager (nor {more} more of {len(compiled.named())} tensors)",
        label_before="eager",
        before="the same kernels, called in the same dtypes and order",
        now=run.conditions.now(f"distance {distance.far[worst]:.2g} of the noise, {distance.median:.2g} in the median"),
        likely="the trace casts elsewhere, or runs backward in another region than eager: it does for attention by its "
        f"formula (pytorch/pytorch#179804), but with {BACKWARD_OFF}",
    )
