"""Run a model on tensors with virtual dtypes: torch sees bfloat16 or float32, but the stored values are float64.

torch itself runs the model, and only the kernels are replaced. Autograd, autocast's state, type promotion, explicit
casts, in-place operators, views, hooks and checkpoints therefore work as usual.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.cases import Realised, map_tensors
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.draws import MASKLESS, Draw, Draws, dependent, draw_of, draws, is_computed, written_by
from pytest_amp.numerics.oracle.conversion import SILENTLY_WRITTEN, operation_of
from pytest_amp.numerics.oracle.models import REFUSALS, ModelName, NotModelled, evaluate, model_for
from pytest_amp.numerics.oracle.operation import LOW, WIDE, Operation, is_real, met, rounded, widened
from pytest_amp.numerics.oracle.promotion import as_real, refusal, returned_dtypes
from pytest_amp.text.quoted import quoted


class CannotFollow(AmpFailure):
    """Exception for an operator that the oracle cannot run in float64."""


#: Operators that read a tensor's bits, or use its memory.
_BITS = frozenset({"aten::view.dtype", "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset"})


def _zeros(operation: Operation) -> torch.Tensor:
    return torch.zeros(operation.args[0], dtype=torch.float64, device=operation.kwargs.get("device"))


#: Operators that only set a flag, for a later operator to do the work. Kernels below the Python dispatch key ignore the
#: flag, so the work is done at once. ``_efficientzerotensor``: forward-mode AD represents zero tangents by tensors
#: without memory.
_LAZY: dict[str, Callable[[Operation], torch.Tensor]] = {
    "aten::_conj": lambda operation: torch.conj_physical(operation.args[0]),
    "aten::_neg_view": lambda operation: torch.neg(operation.args[0]),
    "aten::_efficientzerotensor": _zeros,
}


def _checks_weight_buffer(call: torch_private.Dispatched) -> bool:
    """Return whether ``call`` is part of a recurrent layer's check that its weights share one buffer.

    Virtual weights share none. For the check, try_get_weight_buf in aten/src/ATen/native/cudnn/RNN.cpp sets an empty
    tensor to the memory of a weight. If the tensor stays empty, it is too small for the weights, so the layer treats
    them as separate.
    """
    target = call.args[0]
    return bool(call.overload.name() == "aten::set_.source_Storage" and target.is_cuda and not target.numel())


def _nothing() -> None:
    """Replace ``flatten_parameters`` by a no-op, since virtual tensors do not need it."""


def virtual(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating or complex tensor as a virtual leaf of its dtype; virtual and other tensors unchanged."""
    if not is_real(tensor) or torch_private.values_of(tensor) is not None:
        return tensor
    result: torch.Tensor = torch_private.virtual_tensor(
        widened(tensor), tensor.dtype, requires_grad=tensor.requires_grad
    )
    return result


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the float64 values of a virtual tensor; a plain tensor unchanged."""
    result = torch_private.values_of(tensor)
    return tensor if result is None else result


@dataclass(frozen=True)
class Predictor:
    """Dispatcher that runs operators in float64 and, if it ``rounds``, rounds results to their virtual dtypes.

    ``unmodelled`` collects the operators without a rounding model. ``draws`` are the random numbers to replay; without
    them, random operators run in the real dtypes. ``last`` has the name of the most recent operator. ``notice`` is
    called with every call and its result.
    """

    device_type: str
    rounds: bool
    unmodelled: set[str] = field(default_factory=set)
    draws: Draws | None = None
    last: deque[str] = field(default_factory=partial(deque, maxlen=1))
    notice: Callable[[torch_private.Dispatched, Any], None] | None = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Make all tensors created inside the block virtual, including those of factory functions."""
        with torch_private.dispatched_calls(self.run):
            yield

    def virtualised(self, realised: Realised) -> Realised:
        """Return ``realised`` with virtual parameters, buffers and batch. The module is changed in place: pass a copy.

        Tied parameters stay tied, and shared buffers stay shared. Embeddings are made to return dense gradients, which
        have the same values as sparse ones.
        """
        parameters: dict[int, torch.nn.Parameter] = {}
        buffers: dict[torch.Tensor, Any] = {}
        with torch_private.dispatched_calls(self.run, virtual_only=True):
            for module in realised.model.modules():
                for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                    if id(parameter) not in parameters:
                        new = torch.nn.Parameter(virtual(parameter.detach()), requires_grad=parameter.requires_grad)
                        parameters[id(parameter)] = new if is_real(parameter) else parameter
                    setattr(module, name, parameters[id(parameter)])
                for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
                    if buffer not in buffers:
                        buffers[buffer] = virtual(buffer)
                    setattr(module, name, buffers[buffer])
                if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
                    module.sparse = False
                if isinstance(module, torch.nn.RNNBase):
                    module.flatten_parameters = _nothing  # type: ignore[method-assign]  # they share no memory
            return replace(realised, batch=map_tensors(virtual, realised.batch))

    def run(self, call: torch_private.Dispatched) -> Any:
        """Run one call, and return its result with virtual tensors."""
        result = self._run(call)
        if self.draws is not None and not torch_private.is_random(call.overload):
            self.draws.decisions.replay(call.overload, call.args, call.kwargs, result, values)
        if self.notice is not None:
            self.notice(call, result)
        return result

    def _run(self, call: torch_private.Dispatched) -> Any:
        self.last.append(call.overload.name())
        leaves, _ = call.flat
        if call.overload.name() in _BITS and any(is_real(leaf) for leaf in leaves):
            if _checks_weight_buffer(call):
                return call.args[0]
            if call.overload.name() == "aten::view.dtype":
                return self._bits(call)
            raise CannotFollow(f"{call.overload.name()} needs the bits or the memory of the real tensor")
        try:
            returned = returned_dtypes(call)
        except (RuntimeError, TypeError, NotImplementedError):
            if any(torch_private.values_of(leaf) is not None for leaf in leaves):
                raise
            return call()  # no virtual tensor, and torch rejects the call: raise torch's own error
        if not any(is_real(leaf) for leaf in leaves) and not any(returned):
            return call()
        if draws(call) and call.overload.name() not in MASKLESS:
            return self._random(call, returned)
        try:
            return self._computed(call, returned)
        except (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError) as error:
            reason = refusal(call)
            if reason is not None:
                raise reason from None
            raise CannotFollow(
                f"the rounding oracle cannot follow {call.overload.name()}",
                now=quoted(error),
                likely="the operator has no float64 kernel, and no formula in pytest_amp/numerics/oracle/formulas.py",
            ) from error

    def _computed(self, call: torch_private.Dispatched, returned: tuple[torch.dtype | None, ...]) -> Any:
        plain: list[tuple[torch.Tensor, torch.Tensor]] = []

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            values_of_tensor = torch_private.values_of(tensor)
            if values_of_tensor is None:
                values_of_tensor = widened(tensor)
                plain.append((tensor, values_of_tensor))
            return values_of_tensor  # type: ignore[no-any-return]

        operation = operation_of(call, returned, wide, device_type=self.device_type, rounds=self.rounds)
        aliasing = torch_private.aliasing_of(call.overload)
        if operation.name in _LAZY:
            results = [_LAZY[operation.name](operation)]
        elif aliasing.views or aliasing.writes:
            reduced = self._reduced_in_place(call, operation)
            results = self._compute_or_stand_in(
                call,
                operation,
                lambda: torch_private.flat(
                    torch_private.call_overload(call.overload, operation.args, operation.kwargs)
                )[0],
            )
            if reduced is not None:
                operation.args[0].copy_(reduced)
            if aliasing.writes:
                if self.rounds:
                    _round_written(call, operation)
                for tensor, value in plain:
                    tensor.copy_(value)
        else:
            results = self._evaluated(call, operation)
        if not returned:
            return results[0] if results else None
        return torch_private.with_aliases(call, _shaped(call, _virtual_results(results, returned)))

    def _bits(self, call: torch_private.Dispatched) -> torch.Tensor:
        """Reinterpret the bits of a tensor, in its real dtype, as another dtype; the result is a copy.

        In torch the result shares the tensor's memory. The operator therefore counts as unmodelled.
        """
        self.unmodelled.add(call.overload.name())
        return virtual(as_real(call.args[0]).view(*call.args[1:], **call.kwargs))

    def _evaluated(self, call: torch_private.Dispatched, operation: Operation) -> list[Any]:
        """Compute the flat results by the operator's model, and round the statistics that the operator updates."""
        results = self._compute_or_stand_in(call, operation, lambda: evaluate(operation))
        if model_for(operation).name is ModelName.UNMODELLED or _has_colliding_updates(operation, results):
            self.unmodelled.add(operation.name)
        for index in SILENTLY_WRITTEN.get(operation.name, ()):
            statistic, dtype = operation.args[index], getattr(call.args[index], "dtype", None)
            if statistic is not None and dtype is not None and self.rounds:
                statistic.copy_(rounded(statistic, dtype))
        return results

    def _compute_or_stand_in(
        self, call: torch_private.Dispatched, operation: Operation, compute: Callable[[], list[Any]]
    ) -> list[Any]:
        """Return the results of ``compute`` or, for an operator without a model, of its stand-in."""
        try:
            return compute()
        except (NotModelled, *REFUSALS) as error:
            reason = refusal(call)
            if reason is not None:
                raise reason from None
            try:
                results = operation.stand_in()
            except Exception as second:  # noqa: BLE001  # any exception of any kernel
                raise CannotFollow(
                    f"the rounding oracle cannot follow {operation.name}",
                    now=f"{quoted(error)}; {quoted(second, 120)}",
                    likely="it has no float64 kernel and no formula, and its decomposition and other kernels fail, too",
                ) from error
            self.unmodelled.add(operation.name)
            return results

    def _reduced_in_place(self, call: torch_private.Dispatched, operation: Operation) -> torch.Tensor | None:
        """Compute the first argument after a nondeterministic in-place reduction; None for any other operator."""
        if not self.rounds or model_for(operation).name is not ModelName.ANY_ORDER:
            return None
        copy = replace(operation, args=(operation.args[0].clone(), *operation.args[1:]))
        return self._evaluated(call, copy)[0]  # type: ignore[no-any-return]

    def _random(self, call: torch_private.Dispatched, returned: tuple[torch.dtype | None, ...]) -> Any:
        if self.draws is not None:
            self.draws.decisions.forget_written(call.overload, call.args, call.kwargs)
        draw = None if self.draws is None else self.draws.find(call)
        result = self._replayed(call, draw or self._drawn(call), returned)
        if self.draws is not None and draw is not None:
            self.draws.follow(call, draw, result)
        return result

    def _drawn(self, call: torch_private.Dispatched) -> Draw:
        """Draw random numbers with the real dtypes."""
        leaves, spec = call.flat
        args, kwargs = torch_private.unflat([as_real(leaf) for leaf in leaves], spec)
        return draw_of(torch_private.Dispatched(call.overload, args, kwargs))

    def _replayed(self, call: torch_private.Dispatched, draw: Draw, returned: tuple[torch.dtype | None, ...]) -> Any:
        """Return virtual tensors with the random numbers of ``draw``."""
        for target, value in zip(written_by(call), draw.values, strict=False):
            values(target).copy_(value)
        if is_computed(call):
            leaves, spec = torch_private.flat(call.args)
            inputs = torch_private.unflat([values(x).detach() if is_real(x) else x for x in leaves], spec)
            result = dependent(call, draw, inputs)
            result = rounded(result, returned[0]) if self.rounds and returned[0] is not None else result
            if call.overload.name() == "aten::rrelu_with_noise_":
                values(call.args[0]).copy_(result)
                return call.args[0]
            results = [result, *draw.values][: len(returned)]
        elif torch_private.aliasing_of(call.overload).writes:
            return written_by(call)[0]
        else:
            results = [value.clone() for value in draw.values]
        return _shaped(call, _virtual_results(results, returned))


def _has_colliding_updates(operation: Operation, results: list[Any]) -> bool:
    """Return whether a nondeterministic reduction had colliding updates, so that its result depends on their order.

    Only results of a low dtype are considered. In float32 the order changes no more than float32's roundings do, and
    two float64 runs of such a kernel may differ in the last bit.
    """
    if model_for(operation).name is not ModelName.ANY_ORDER or not operation.rounds:
        return False
    pairs = zip(results, operation.once(), operation.returned, strict=True)
    return any(dtype in LOW and met(result, once) for result, once, dtype in pairs)


def _virtual_results(results: list[Any], returned: tuple[torch.dtype | None, ...]) -> list[Any]:
    """Return the flat results as virtual tensors of the dtypes ``returned``.

    A gradient that was not requested stays None, although the fake kernel may return a dtype for it.
    """
    return [
        torch_private.virtual_tensor(_as_wide(value), dtype) if dtype is not None and value is not None else value
        for value, dtype in zip(results, returned, strict=True)
    ]


def _as_wide(value: torch.Tensor) -> torch.Tensor:
    """Convert ``value``, created by a factory function in the default dtype, to the wide dtype."""
    wide = WIDE[value.is_complex()]
    return value if value.dtype == wide else value.to(wide)


def _round_written(call: torch_private.Dispatched, operation: Operation) -> None:
    """Round the arguments that an overload mutates according to its schema."""
    written = torch_private.written_arguments(call.overload)
    names = list(torch_private.arguments_of(call.overload))
    arguments = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    wide = {**dict(zip(names, operation.args, strict=False)), **operation.kwargs}
    for name in written:
        tensors, changed = torch_private.flat(arguments.get(name))[0], torch_private.flat(wide.get(name))[0]
        for tensor, value in zip(tensors, changed, strict=True):
            if is_real(tensor):
                value.copy_(rounded(value, tensor.dtype))


def _shaped(call: torch_private.Dispatched, results: list[Any]) -> Any:
    """Arrange ``results`` as the overload returns them: one tensor, a list or a tuple."""
    kinds = torch_private.result_kinds(call.overload)
    if kinds[-1].startswith("List"):
        last = len(kinds) - 1
        return (*results[:last], results[last:]) if last else results
    return results[0] if len(kinds) == 1 else tuple(results)
