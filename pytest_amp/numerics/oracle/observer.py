"""Local prediction: replay each operator in float64 on the inputs and incoming gradients of the real run.

Unlike the global prediction it stays accurate at any depth, since a value that rounds differently does not propagate to
the next operator. It also identifies the operator whose rounding differs from its model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.draws import draws
from pytest_amp.numerics.errors import is_hollow
from pytest_amp.numerics.oracle.colliding_updates import spread
from pytest_amp.numerics.oracle.conversion import SILENTLY_WRITTEN, operation_of
from pytest_amp.numerics.oracle.linear_algebra import other_values, with_signs_of
from pytest_amp.numerics.oracle.models import REFUSALS, Model, ModelName, NotModelled, evaluate_both, model_for
from pytest_amp.numerics.oracle.module_places import Direction, Place, Places
from pytest_amp.numerics.oracle.operation import LOW, Operation, flips, is_real, met, rounded, widened
from pytest_amp.numerics.oracle.promotion import KERNEL_DECIDES, returned_dtypes
from pytest_amp.numerics.oracle.sums import certain, lost_to_underflow, most_of_float32
from pytest_amp.precision import FP32
from pytest_amp.rules.spec import Rule
from pytest_amp.text.quoted import quoted


@dataclass(frozen=True)
class Agreement:
    """Agreement of one real result of one operator call with its model.

    - ``expected_dtype``: result of torch's type promotion
    - ``equal``: number of the ``elements`` that equal the model's bitwise or, in float32, within ``FLOAT32_FLIPS``
    - ``error`` and ``ideal``: E(real, exact) and E(model, exact), relative L2 errors for these inputs
    - ``hollow``: whether the low dtype represents all values of a wide result, but not the exact ones
    - ``rounded_by_model``: whether the low dtype represents all values of the model's wide result
    - ``again``: agreement on other values, measured if the result is hollow but not the model's, or if a long or
      cancelling sum may explain the error (see ``oracle.sums``)
    - ``spread``: factor by which the error of a nondeterministic reduction may vary by chance (see
      ``oracle.colliding_updates``)
    """

    dtype: torch.dtype
    expected_dtype: torch.dtype | None
    elements: int
    equal: int
    error: float
    ideal: float
    hollow: bool
    again: Agreement | None = None
    spread: float = 1.0
    rounded_by_model: bool = False


@dataclass(frozen=True)
class ObservedCall:
    """One operator call of a real step: its place, operator, dtypes, model, and the agreement of its results.

    ``given`` are the dtypes of its floating and complex arguments. ``problem`` is the reason why an operator is not
    modelled; its results are then not compared. ``longest`` is the largest dimension of any argument, an estimate of
    the number of terms that are added sequentially.
    """

    place: Place
    operator: str
    given: tuple[torch.dtype, ...]
    model: Model
    results: tuple[Agreement, ...]
    problem: str | None = None
    longest: int = 1


#: Ratio of a low-precision result's error to its model's, above which the call is repeated with other values.
DOUBTFUL = 1.05


#: Prefixes of operators that compute no values: they return uninitialized memory, or the bits of another tensor.
_NOT_COMPUTED = ("aten::empty", "aten::new_empty", "aten::resize", "aten::set_", "aten::view.dtype")


#: Model of an operator that has neither a float64 kernel nor a formula for its arguments.
_UNKNOWN = Model(ModelName.UNMODELLED, source="no float64 kernel and no formula")


@dataclass
class Observer:
    """Run every operator together with its float64 model, up to the call with index ``until`` if it is set.

    ``calls`` is the number of calls so far; indices begin with 0.
    """

    device_type: str
    low: torch.dtype
    places: Places | None = None
    observed_calls: list[ObservedCall] = field(default_factory=list)
    until: int | None = None
    calls: int = 0

    @contextlib.contextmanager
    def on(self, rules: dict[str, Rule]) -> Iterator[None]:
        """Observe every operator call inside the block; ``rules`` are those of the device type."""
        followed = self.places.followed(rules) if self.places is not None else contextlib.nullcontext()
        with followed, torch_private.dispatched_calls(self.run):
            yield

    @property
    def is_over(self) -> bool:
        """Return whether the current call comes after the last one to observe."""
        return self.until is not None and self.calls > self.until + 1

    def run(self, call: torch_private.Dispatched) -> Any:
        """Run one call, observe it, and return its real result."""
        self.calls += 1
        if self.is_over:
            return call()
        name = call.overload.name()
        leaves, _ = call.flat
        is_skipped = (
            not any(is_real(leaf) for leaf in leaves)
            or not all(_has_values(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
            or torch_private.aliasing_of(call.overload).views
            or draws(call)
            or name.startswith(_NOT_COMPUTED)
            or not torch_private.returns_tensors(call.overload)
        )
        if is_skipped:
            return call()
        expected_dtypes: tuple[torch.dtype | None, ...] = ()
        problem = None
        try:
            expected_dtypes = () if name in KERNEL_DECIDES else returned_dtypes(call)
            copy = operation_of(call, (), widened, device_type=self.device_type)
        except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
            problem, copy = quoted(error, 120), None
        result = call()
        if copy is not None:
            self._observe(call, copy, expected_dtypes, torch_private.flat(result)[0])
        else:
            self._note(call, (), _UNKNOWN, (), problem)
        return result

    def _observe(
        self,
        call: torch_private.Dispatched,
        copy: Operation,
        expected_dtypes: tuple[torch.dtype | None, ...],
        real: list[Any],
    ) -> None:
        operation = replace(copy, returned=tuple(value.dtype if is_real(value) else None for value in real))
        if not any(operation.returned) or any(is_real(value) and value.layout != torch.strided for value in real):
            return
        model = model_for(operation)
        try:
            compared = self._compared(call, operation, expected_dtypes, real)
            if any(self._is_doubtful(call, agreement, model.factor) for agreement in compared):
                compared = self._repeat_with_other_values(call, operation, compared)
        except (NotModelled, *REFUSALS) as error:
            self._note(call, copy.given, _UNKNOWN, (), quoted(error, 120))
            return
        self._note(call, copy.given, model, tuple(compared), None)

    def _compared(
        self,
        call: torch_private.Dispatched,
        operation: Operation,
        expected_dtypes: tuple[torch.dtype | None, ...],
        real: list[Any],
    ) -> list[Agreement]:
        """Compare the real results with the alternative of the model to which most elements are equal."""
        # Keep copies of arguments that the evaluation of an in-place operator changes, for ``_relative_to_terms``.
        before = operation.unwritten() if operation.name.startswith(_SUMS) else operation
        real = _without_work_buffers(operation, real)
        unaligned, unaligned_alternatives = evaluate_both(operation)
        exact = with_signs_of(real, unaligned, operation.name)
        alternatives = (with_signs_of(real, results, operation.name) for results in unaligned_alternatives)
        lost = lost_to_underflow(_leaves(call))
        dtypes = expected_dtypes if len(expected_dtypes) == len(real) else (None,) * len(real)
        any_order = model_for(operation).name is ModelName.ANY_ORDER
        compared: list[Agreement] = []
        for predicted in alternatives:
            agreements = [
                self._agreement(result, predicted_result, exact_result, dtype, lost=lost, any_order=any_order)
                for result, predicted_result, exact_result, dtype in zip(real, predicted, exact, dtypes, strict=True)
                if is_real(result) and result.numel()
            ]
            if not compared or _equal(agreements) > _equal(compared):
                compared = agreements
            if _equal(compared) >= NEARLY_ALL * sum(agreement.elements for agreement in compared):
                break
        if operation.name.startswith(_SUMS) and any(_may_cancel(agreement) for agreement in compared):
            compared = _relative_to_terms(before, compared, exact)
        for index in SILENTLY_WRITTEN.get(operation.name, ()):
            value = call.args[index]
            if is_real(value):
                changed = operation.args[index]
                statistic = self._agreement(value, rounded(changed, value.dtype), changed, value.dtype, lost=lost)
                compared.append(_relative_to_input(operation, statistic, changed))
        return compared

    def _is_doubtful(self, call: torch_private.Dispatched, agreement: Agreement, factor: float) -> bool:
        """Return whether a second measurement, on other values, is needed to judge the operator.

        It is needed for an error that is too large for one rounding or a short float32 sum, but possible for a long
        sum. The error of a sum is relative to the absolute values of its terms, so an error above ``certain`` is a
        fault without a second measurement.

        It is also needed for a hollow result whose prediction is not hollow: if terms cancel to their last bits, as in
        a row of a softmax's gradient, the result has so few bits that the low dtype represents it without rounding.
        """
        if agreement.hollow and not agreement.rounded_by_model:
            return True
        if agreement.dtype != torch.float32:
            return agreement.error > DOUBTFUL * factor * agreement.ideal
        excess_error = agreement.error - agreement.ideal
        terms = max((leaf.numel() for leaf in _leaves(call) if is_real(leaf)), default=1)
        impossible = call.overload.name().startswith(_SUMS) and excess_error > certain(terms)
        return excess_error > most_of_float32(self.low) and not impossible

    def _repeat_with_other_values(
        self, call: torch_private.Dispatched, operation: Operation, compared: list[Agreement]
    ) -> list[Agreement]:
        """Run the kernel on other values of the same dtypes and shapes, and set ``again`` of each of ``compared``."""
        generator, name = torch.Generator("cpu").manual_seed(len(self.observed_calls)), call.overload.name()
        leaves, spec = call.flat
        leaves = [other_values(name, x, generator) if is_real(x) else x for x in leaves]
        args, kwargs = torch_private.unflat(leaves, spec)
        other_call = torch_private.Dispatched(call.overload, args, kwargs)
        copy = operation_of(other_call, operation.returned, widened, device_type=self.device_type)
        repeated = self._compared(other_call, copy, (), torch_private.flat(other_call())[0])
        return [replace(agreement, again=again) for agreement, again in zip(compared, repeated, strict=True)]

    def _agreement(  # noqa: PLR0913  # parts of one comparison
        self,
        real: torch.Tensor,
        predicted: torch.Tensor,
        exact: torch.Tensor,
        expected: torch.dtype | None,
        *,
        lost: float = 0.0,
        any_order: bool = False,
    ) -> Agreement:
        values, size = widened(real), _norm(exact)
        same = (values == predicted) | (values.isnan() & predicted.isnan())
        if real.dtype == torch.float32 and size:
            same |= (values - predicted).abs() <= flips(predicted)
        if lost * real.numel() ** 0.5 > _NEGLIGIBLE * size:
            same |= (values - predicted).abs() <= lost
        can_be_hollow = real.dtype in (torch.float32, torch.float64)
        factor = 1.0
        if any_order and real.dtype in LOW and met(predicted, rounded(exact, real.dtype)):
            factor = spread(predicted - exact)
        return Agreement(
            dtype=real.dtype,
            expected_dtype=expected,
            elements=real.numel(),
            equal=int(same.sum()),
            error=_norm(values - exact) / (size or 1.0),
            ideal=(_norm(predicted - exact) + lost * real.numel() ** 0.5) / (size or 1.0),
            hollow=can_be_hollow
            and _representable(values, self.low)
            and not _representable(exact, self.low)
            and bool(is_hollow(real, self.low)),
            rounded_by_model=can_be_hollow and _representable(predicted, self.low),
            spread=factor,
        )

    def _note(
        self,
        call: torch_private.Dispatched,
        input_dtypes: Sequence[torch.dtype | None],
        model: Model,
        results: tuple[Agreement, ...],
        problem: str | None,
    ) -> None:
        place = self.places.here() if self.places is not None else _NOWHERE
        dtypes = tuple(dtype for dtype in input_dtypes if dtype is not None)
        longest = max((size for leaf in _leaves(call) if is_real(leaf) for size in leaf.shape), default=1)
        self.observed_calls.append(ObservedCall(place, call.overload.name(), dtypes, model, results, problem, longest))


def _has_values(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and torch_private.has_memory(tensor)


def _leaves(call: torch_private.Dispatched) -> list[Any]:
    return call.flat[0]


#: Fraction of a result's norm above which the bound of the underflow matters: elements that differ by at most this
#: bound then count as equal.
_NEGLIGIBLE = 2.0**-30
_LOG_SOFTMAX_BACKWARD = "_log_softmax_backward_data"
#: Prefixes of operators that add terms, which may cancel; the relative error of a sum is then larger than its terms'.
_SUMS = tuple(
    f"aten::{name}"
    for name in (
        *("sum", "mean", "mm", "bmm", "addmm", "baddbmm", "convolution", "add", "sub"),
        *("native_batch_norm", "native_layer_norm", "native_group_norm"),  # the mean of a normalized row is zero
        *("embedding", "index_add", "scatter_add", "index_put"),
        _LOG_SOFTMAX_BACKWARD,  # under label smoothing, at the likely class: its probability and the sum are near one
    )
)

#: Float32 error above which cancellation of the terms is taken into account.
CANCELS = 2.0**-20


def _may_cancel(agreement: Agreement) -> bool:
    return agreement.error > (CANCELS if agreement.dtype == torch.float32 else agreement.ideal * _CANCELLATION_RATIO)


#: Ratio of a low-precision result's error to its model's, above which cancellation of the terms is taken into account.
_CANCELLATION_RATIO = 1.02


def _relative_to_terms(operation: Operation, compared: list[Agreement], exact: list[Any]) -> list[Agreement]:
    """Make the errors of float32 results in ``compared`` relative to the sums of their terms' absolute values.

    The ``ideal`` error of a low-precision result is at least one float32 rounding of that sum. It exceeds the rounding
    of the result itself if the terms cancel to less than about 2**-13 (fp16) or 2**-16 (bf16) of that sum.
    """
    sizes = [
        _norm(value) / (_norm(known) or 1.0)
        for value, known in zip(_sums_of_absolute_terms(operation), exact, strict=True)
        if is_real(value) and value.numel()
    ]
    return [
        replace(agreement, error=agreement.error / max(size, 1.0))
        if agreement.dtype == torch.float32
        else replace(agreement, ideal=max(agreement.ideal, FP32.u * size))
        for agreement, size in zip(compared, sizes, strict=False)
    ]


def _sums_of_absolute_terms(operation: Operation) -> list[Any]:
    if operation.name == f"aten::{_LOG_SOFTMAX_BACKWARD}":
        gradient, log_probabilities, dim = operation.args[:3]
        return [gradient.abs() + log_probabilities.exp() * gradient.abs().sum(dim, keepdim=True)]
    leaves, spec = torch_private.flat((operation.args, operation.kwargs))
    args, kwargs = torch_private.unflat([leaf.abs() if is_real(leaf) else leaf for leaf in leaves], spec)
    return replace(operation, args=args, kwargs=kwargs, rounds=False).once()


def _without_work_buffers(operation: Operation, real: list[Any]) -> list[Any]:
    """Replace by None in ``real`` the work buffers that kernels leave uninitialized, entirely or in part.

    These are the total weight of an unreduced NLL loss, and ``log_alpha`` of a CTC loss, whose elements beyond a row's
    lengths are uninitialized. See LossNLL.cpp and LossCTC.cpp in aten/src/ATen/native.
    """
    is_nll = operation.name.startswith(("aten::nll_loss_forward", "aten::nll_loss2d_forward"))
    is_unreduced_nll = is_nll and operation.args[3] == 0
    is_ctc = operation.name.startswith("aten::_ctc_loss") and "backward" not in operation.name
    return [real[0], None] if is_ctc or is_unreduced_nll else real


def _relative_to_input(operation: Operation, statistic: Agreement, value: torch.Tensor) -> Agreement:
    """Make the error of running statistics relative to an update with the mean of the absolute inputs."""
    x, momentum = operation.args[0], operation.argument(6, "momentum")
    if statistic.error <= CANCELS or not isinstance(momentum, float):
        return statistic
    added = momentum * _norm(x.abs().mean([0, *range(2, x.dim())]))
    return replace(statistic, error=statistic.error / max(added / (_norm(value) or 1.0), 1.0))


#: Fraction of equal elements that is enough: no further alternative of the model is then tried.
NEARLY_ALL = 0.99


def _equal(compared: list[Agreement]) -> int:
    return sum(agreement.equal for agreement in compared)


_NOWHERE = Place("", Direction.FORWARD, None)


def _representable(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether ``dtype`` represents all of ``values`` after their conversion to float32."""
    narrow = values.to(torch.float32)
    return bool(((narrow == narrow.to(dtype).to(narrow.dtype)) | narrow.isnan()).all())


def _norm(values: torch.Tensor) -> float:
    """Return the L2 norm of the finite elements; the difference of two equal infinities, NaN, counts as zero."""
    parts = torch.view_as_real(values) if values.is_complex() else values
    return float(torch.linalg.vector_norm(parts.nan_to_num(0.0, 0.0, 0.0)))
