"""Recorder of a program: every operator call with its place, module, region and preceding calls."""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_amp import torch_private
from pytest_amp.cases import named_tensors
from pytest_amp.lint.infinities import Infinities
from pytest_amp.lint.place import Place, calling_place
from pytest_amp.lint.program import BackwardEvent, Call, Leaf, Operand, Program, Role, Values
from pytest_amp.lint.regions import followed_regions
from pytest_amp.lint.threads import followed_threads
from pytest_amp.lint.values import values_in_float32, values_of_call
from pytest_amp.numerics.causes import operator_of
from pytest_amp.numerics.sites import followed_modules

#: Functions that get or set attributes of tensors, and compute nothing.
_ATTRIBUTES = ("__get__", "__set__")
#: Functions that create a tensor from a number.
_MAKERS = ("tensor", "as_tensor", "asarray", "new_tensor")
#: Operators that return uninitialised memory.
UNWRITTEN = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize")


@dataclass
class _Function:
    """Current torch function called from Python: its name, place, and the region around it."""

    name: str
    place: Place
    autocast: torch.dtype | None
    written: float | None = None


@dataclass(frozen=True)
class _Site:
    """Site of a call: its place, its module, the function that Python called, and the pass."""

    place: Place
    module: str | None
    function: str
    backward: bool = False
    again: bool = False


@dataclass
class Recorder:
    """Recorder of all calls made inside ``on``."""

    device_type: str
    program: Program
    stage: int = 0
    loss_depth: int = 0
    given_depth: int = 0
    names: dict[int, str] = field(default_factory=dict)
    #: Infinities of float32 in the run without a region, which the low dtype is not to blame for; None records them.
    float32: Infinities | None = field(default_factory=Infinities)
    _function: _Function | None = None
    _modules: list[torch.nn.Module] = field(default_factory=list)
    _memory: dict[tuple[object, int], Call] = field(default_factory=dict)
    _leaves: dict[tuple[object, int], Leaf] = field(default_factory=dict)
    _numbers: list[int] = field(default_factory=list)
    _forward: list[tuple[Place, str | None]] = field(default_factory=list)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Record inside the block."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(followed_modules(self._modules))
            stack.enter_context(followed_regions(self))
            stack.enter_context(followed_threads(self))
            stack.enter_context(_Functions(self))
            stack.enter_context(torch_private.dispatched_calls(self._run))
            yield

    def name(self, model: torch.nn.Module, batch: Any) -> None:
        """Name the modules and tensors of ``model``, and the tensors of ``batch``."""
        self.names = {id(module): name for name, module in model.named_modules()}
        for name, tensor in named_tensors(batch):
            self._add_leaf(tensor, Leaf(Role.BATCH, name))
        for name, tensor in model.named_buffers():
            self._add_leaf(tensor, Leaf(Role.BUFFER, name))
        for name, tensor in model.named_parameters():
            self._add_leaf(tensor, Leaf(Role.PARAMETER if tensor.requires_grad else Role.FROZEN, name))

    def inside_loss(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``loss``, wrapped so that the recorder knows when it runs."""

        def told(*arguments: Any) -> Any:
            self.loss_depth += 1
            try:
                return loss(*arguments)
            finally:
                self.loss_depth -= 1

        return told

    def producer_of(self, tensor: torch.Tensor) -> Call | None:
        """Return the call that last wrote to the memory of ``tensor``."""
        key = memory_of(tensor)
        return None if key is None else self._memory.get(key)

    def module(self) -> str | None:
        """Return the path of the innermost running module; None outside of the model."""
        for module in reversed(self._modules):
            if id(module) in self.names:
                return self.names[id(module)]
        return None if not self._modules or self.names else type(self._modules[-1]).__name__

    def state(self) -> torch.dtype | None:
        """Return the dtype of the active region, None without one."""
        enabled = torch.is_autocast_enabled(self.device_type)
        return torch.get_autocast_dtype(self.device_type) if enabled else None

    def enter(self, name: str, arguments: tuple[Any, ...]) -> _Function | None:
        """Note the call of a torch function; returns the surrounding one."""
        before = self._function
        if name not in _ATTRIBUTES and not self.is_again:
            first = arguments[0] if arguments and name in _MAKERS else None
            written = first if isinstance(first, float) else None
            self._function = _Function(name, calling_place(), self.state(), written)
            if name == "backward":
                self._start_backward(arguments)
        return before

    def leave(self, before: _Function | None) -> None:
        """Note the end of a torch function's call."""
        self._function = before

    @property
    def is_again(self) -> bool:
        """Return whether a backward pass is running."""
        return torch_private.current_node() is not None

    def _add_leaf(self, tensor: torch.Tensor, leaf: Leaf) -> None:
        key = memory_of(tensor)
        if key is not None:
            self._leaves[key] = leaf

    def _start_backward(self, arguments: tuple[Any, ...]) -> None:
        first = arguments[0] if arguments else None
        if isinstance(first, (list, tuple)):
            first = first[0] if first else None
        self.program.backwards.append(
            BackwardEvent(
                number=len(self.program.calls),
                place=calling_place(),
                autocast=self.state(),
                root=self.producer_of(first) if isinstance(first, torch.Tensor) else None,
                dtype=first.dtype if isinstance(first, torch.Tensor) else None,
                stage=self.stage,
            )
        )

    def _run(self, call: torch_private.Dispatched) -> Any:
        aliasing = torch_private.aliasing_of(call.overload)
        is_view = aliasing.views and _base(call) != "lift_fresh"
        if is_view or not (aliasing.writes or torch_private.returns_tensors(call.overload)):
            result = call()
            if _base(call) == "_local_scalar_dense" and not self.is_again:
                self._note("_local_scalar_dense", call, self._operands(call), self._site(), [])
            return result
        operands, site = self._operands(call), self._site()
        result = call()
        results = [value for value in torch_private.flat(result)[0] if isinstance(value, torch.Tensor)]
        operator = "_to_copy" if operator_of(call) == "cast" else _base(call)
        record = self._note(operator, call, operands, site, results)
        if aliasing.writes:
            self._write(_written(call), record)
        else:
            self._write(results, None if operator in UNWRITTEN else record, is_new=True)
        return result

    def _note(
        self,
        operator: str,
        call: torch_private.Dispatched,
        operands: tuple[Operand, ...],
        site: _Site,
        results: list[torch.Tensor],
    ) -> Call:
        """Add a completed call to the program."""
        function = self._function
        written = None if function is None else function.written
        is_forward = not (site.backward or site.again)
        values = Values()
        if is_forward:
            with contextlib.suppress(RuntimeError):  # a tensor whose values Python cannot read, as in a transform
                if self.float32 is None:
                    values = values_in_float32(operator, call, results)
                else:
                    values = values_of_call(operator, call, operands, results, written)
            if self.float32 is not None:
                expected = self.float32.of_next(site.place, site.module, operator)
                values = replace(values, infinite=0) if 0 < values.infinite <= expected else values
        leaves, _ = call.flat
        record = Call(
            number=len(self.program.calls),
            operator=operator,
            function=site.function,
            place=site.place,
            module=site.module,
            backward=site.backward,
            again=site.again,
            autocast=function.autocast if function is not None and is_forward else self.state(),
            operands=operands,
            results=tuple((value.dtype, _shape(value)) for value in results),
            numbers=tuple(float(leaf) for leaf in leaves if isinstance(leaf, (int, float)) and not math.isnan(leaf)),
            writes=torch_private.aliasing_of(call.overload).writes,
            stage=self.stage,
            in_loss=self.loss_depth > 0,
            values=values,
        )
        self.program.calls.append(record)
        return record

    def _operands(self, call: torch_private.Dispatched) -> tuple[Operand, ...]:
        leaves, _ = call.flat
        return tuple(self._operand(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))

    def _operand(self, tensor: torch.Tensor) -> Operand:
        key, shape = memory_of(tensor), _shape(tensor)
        view: tuple[object, ...] = (key, shape)
        if key is not None and not tensor.is_nested:
            view = (key, tensor.storage_offset(), shape, tensor.stride())
        leaf = None if key is None else self._leaves.get(key)
        producer = None if key is None or leaf is not None else self._memory.get(key)
        return Operand(tensor.dtype, shape, view, tensor.requires_grad, producer, leaf)

    def _write(self, tensors: list[torch.Tensor], call: Call | None, *, is_new: bool = False) -> None:
        """Note the writer of the memory of tensors; new memory no longer belongs to a leaf."""
        for tensor in tensors:
            key = memory_of(tensor)
            if key is None:
                continue
            if is_new:
                self._leaves.pop(key, None)
            if call is None:
                self._memory.pop(key, None)
            else:
                self._memory[key] = call

    def _site(self) -> _Site:
        """Return the site of the current call."""
        node = torch_private.current_node()
        module = self.module()
        if node is None:
            function = self._function
            place = calling_place() if function is None else function.place
            number = torch_private.sequence_number()
            if not self._numbers or number >= self._numbers[-1]:
                self._numbers.append(number)
                self._forward.append((place, module))
            return _Site(place, module, "" if function is None else function.name)
        if self._modules:
            return _Site(calling_place(backward=True), module, "", again=True)
        backward_place = calling_place(backward=True)
        if backward_place.line:
            return _Site(backward_place, self._module_of(node), "own", backward=True)
        # A node was created by the first call after which the next node has a larger number.
        index = bisect.bisect_right(self._numbers, torch_private.number_of(node))
        if hasattr(node, "variable") or index == len(self._forward):
            return _Site(Place(), None, "", backward=True)
        place, module = self._forward[index]
        return _Site(place, module, "", backward=True)

    def _module_of(self, node: Any) -> str | None:
        index = bisect.bisect_right(self._numbers, torch_private.number_of(node))
        return None if index >= len(self._forward) else self._forward[index][1]


class _Functions(TorchFunctionMode):
    """Mode that reports each torch function called from Python to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.recorder.enter(str(getattr(func, "__name__", "")), args)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.leave(before)


def memory_of(tensor: torch.Tensor) -> tuple[object, int] | None:
    """Return device and address of the memory of a tensor; None if it has none of its own."""
    if tensor.layout != torch.strided or not tensor.numel() or not torch_private.has_memory(tensor):
        return None
    if torch_private.values_of(tensor) is not None:
        return None
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a subclass of tensors without storage
        return None
    return (tensor.device, address) if address else None


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor; of a nested one, whose rows differ in length, the number of its elements."""
    return (tensor.numel(),) if tensor.is_nested else tuple(tensor.shape)


def _base(call: torch_private.Dispatched) -> str:
    """Return the name of an operator without namespace, overload, and the marks of variants: ``lerp``."""
    name = str(call.overload.name()).rpartition("::")[2].partition(".")[0]
    return name.removeprefix("_foreach_").rstrip("_") if name.startswith("_foreach_") else name.rstrip("_")


def _written(call: torch_private.Dispatched) -> list[torch.Tensor]:
    """Return the arguments that a call writes to."""
    names = torch_private.written_arguments(call.overload)
    schema = torch_private.arguments_of(call.overload)
    bound = {**dict(zip(schema, call.args, strict=False)), **call.kwargs}
    leaves, _ = torch_private.flat([bound.get(name) for name in names])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
