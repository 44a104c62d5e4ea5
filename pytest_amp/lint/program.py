"""Recorded program: its operator calls in order, each with the calls that produced its arguments."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pytest_amp.lint.place import Place
from pytest_amp.numerics.oracle.operation import LOW

#: Operators whose result has the values of their argument, at most rounded.
TRANSPARENT = frozenset({"_to_copy", "alias", "clone", "contiguous", "detach", "lift_fresh", "copy", "_unsafe_view"})
#: Matrix products and convolutions.
PRODUCTS = frozenset({
    *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution", "convolution_overrideable", "linear"),
    *("_grouped_mm", "mkldnn_rnn_layer", "_thnn_fused_lstm_cell", "lstm", "addbmm", "matmul", "_cudnn_rnn"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "mkldnn_linear"),
    *("_scaled_dot_product_fused_attention_overrideable", "_convolution", "mkldnn_convolution", "flex_attention"),
})  # fmt: skip
#: Methods by which a program casts a tensor itself.
CASTS = frozenset({"bfloat16", "double", "float", "half", "to", "type", "type_as"})


class Role(enum.Enum):
    """Role of a tensor that no call of the program has produced."""

    PARAMETER = "parameter"
    FROZEN = "frozen parameter"
    BUFFER = "buffer"
    BATCH = "batch"


@dataclass(frozen=True)
class Leaf:
    """Tensor of the model or the batch, with its name."""

    role: Role
    name: str


@dataclass(frozen=True, eq=False)
class Operand:
    """Tensor argument of a call; ``view`` distinguishes views of one memory, ``producer`` last wrote to the memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    view: tuple[object, ...]
    requires_grad: bool
    producer: Call | None
    leaf: Leaf | None

    @property
    def is_low(self) -> bool:
        """Return whether the dtype is bfloat16 or float16."""
        return self.dtype in LOW

    @property
    def numel(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Values:
    """Facts about the values of a call, each computed only if a rule needs it.

    ``largest`` is the largest magnitude of the argument. ``infinite`` is the number of infinities that finite arguments
    gave, and ``inexact`` is True if a conversion changed a whole number. ``vanished`` and ``beyond`` are constants that
    are zero, or infinite, in the dtype of the result.
    """

    largest: float = 0.0
    infinite: int = 0
    inexact: bool = False
    vanished: tuple[float, ...] = ()
    beyond: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Call:
    """Operator call.

    ``function`` is the torch function that Python called, ``autocast`` the dtype of the surrounding region (None
    without one), and ``module`` the path of the innermost module (None outside of the model). ``stage`` is the number
    of the training iteration. ``in_loss`` is True while the case's loss function runs.
    """

    number: int
    operator: str
    function: str
    place: Place
    module: str | None
    backward: bool
    again: bool
    autocast: torch.dtype | None
    operands: tuple[Operand, ...]
    results: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    numbers: tuple[float, ...]
    writes: bool
    stage: int
    in_loss: bool
    values: Values

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the dtype of the first floating result."""
        return next((dtype for dtype, _ in self.results if dtype.is_floating_point or dtype.is_complex), None)

    @property
    def is_low(self) -> bool:
        """Return whether the first floating result is bfloat16 or float16."""
        return self.dtype in LOW

    @property
    def numel(self) -> int:
        """Number of elements of the first result."""
        return torch.Size(self.results[0][1]).numel() if self.results else 0

    @property
    def is_cast(self) -> bool:
        """Return whether the call converts a tensor to another dtype."""
        if self.operator not in ("_to_copy", "copy") or not self.results:
            return False
        source = self.source
        return source is not None and source.dtype is not self.results[0][0]

    @property
    def is_low_update(self) -> bool:
        """Return whether the call changes a low-precision tensor in place."""
        return self.writes and bool(self.operands) and self.operands[0].is_low

    @property
    def source(self) -> Operand | None:
        """Return the tensor that a cast converts."""
        place = -1 if self.operator == "copy" else 0
        return self.operands[place] if self.operands else None

    @property
    def is_own_cast(self) -> bool:
        """Return whether the program casts the tensor itself; autocast's casts happen within other functions."""
        if not self.is_cast:
            return False
        if self.backward:
            return bool(self.place.line) and self.autocast is None and self.function == "own"
        return self.function in CASTS or self.operator == "copy"

    @property
    def is_direct(self) -> bool:
        """Return whether a program called the operator itself, not a torch function composed of several."""
        if self.backward or self.again or self.place.is_torch:
            return False
        name = self.function if self.function.endswith("__") else self.function.removesuffix("_")  # exp_ is exp
        return not name or name in _NAMES.get(self.operator, (self.operator,))


#: torch functions and methods by the operator that they call, where the names differ.
_NAMES: dict[str, tuple[str, ...]] = {
    "mul": ("mul", "multiply", "outer", "einsum", "__rmul__", "__mul__", "__imul__", "__rdiv__", "dot"),
    "pow": ("pow", "square", "__pow__", "__rpow__", "__ipow__", "float_power"),
    "linalg_vector_norm": ("norm", "vector_norm", "linalg_vector_norm", "linalg_norm"),
    "sub": ("sub", "subtract", "__rsub__", "__sub__", "__isub__"),
    "rsub": ("sub", "rsub", "__rsub__"),
    "var_mean": ("var_mean",),
    "bmm": ("bmm", "einsum", "matmul", "__matmul__", "vecdot", "linalg_vecdot", "tensordot"),
    "log": ("log", "xlogy"),
    "logcumsumexp": ("logcumsumexp",),
    "mean": ("mean", "nanmean"),
    "sum": ("sum", "nansum", "nanmean", "einsum"),
    "exp": ("exp",),
    "add": ("add", "__add__", "__radd__", "__iadd__", "sum"),
}


@dataclass(frozen=True)
class RegionEvent:
    """Entry into a region of autocast; ``dtype`` is None for a disabled one, ``outer`` that of the surrounding region.

    ``number`` is that of the first call in the region, and ``until`` that of the first call after it. ``is_given`` is
    True for a region that the check provides, and False for one that the user's code opens.
    """

    number: int
    until: int
    place: Place
    dtype: torch.dtype | None
    outer: torch.dtype | None
    module: str | None
    in_loss: bool
    is_given: bool
    depth: int
    #: Reason for which a region is disabled, as the program writes it.
    off: str = "enabled=False"


@dataclass(frozen=True)
class BackwardEvent:
    """Call of ``backward``: its place, the region around it, and the call that produced its root."""

    number: int
    place: Place
    autocast: torch.dtype | None
    root: Call | None
    dtype: torch.dtype | None
    stage: int


@dataclass
class Program:
    """Calls, regions and backward passes of a run."""

    low: torch.dtype
    calls: list[Call] = field(default_factory=list)
    regions: list[RegionEvent] = field(default_factory=list)
    backwards: list[BackwardEvent] = field(default_factory=list)
    #: Calls by which a scaler has scaled a loss.
    scaled: list[Call] = field(default_factory=list)
    #: Calls of modules in threads of their own without a region, although one is open in the recorded thread.
    threads: list[tuple[Place, str]] = field(default_factory=list)
    #: Regions of other devices: the device's type, and the place.
    foreign: list[tuple[str, Place]] = field(default_factory=list)

    @cached_property
    def forward(self) -> list[Call]:
        """Return calls of forward passes, without recomputations in a backward pass."""
        return [call for call in self.calls if not call.backward and not call.again]

    @cached_property
    def consumers(self) -> dict[Call, list[Call]]:
        """Return the consumers of each call's result, by call."""
        consumers: dict[Call, list[Call]] = {}
        for call in self.calls:
            for operand in call.operands:
                if operand.producer is not None:
                    consumers.setdefault(operand.producer, []).append(call)
        return consumers

    def uses(self, call: Call, through: Callable[[Call], bool] = lambda _call: True) -> Iterator[Call]:
        """Yield the forward calls that use the result of a call, or of a use that ``through`` accepts, each once."""
        todo, calls = [call], {call}
        while todo:
            for consumer in self.consumers.get(todo.pop(), []):
                if not consumer.backward and consumer not in calls:
                    yield consumer
                    calls.add(consumer)
                    if through(consumer):
                        todo.append(consumer)


def origin(operand: Operand) -> Operand:
    """Return the tensor that ``operand`` is a cast or copy of, or ``operand`` itself."""
    while operand.producer is not None and operand.producer.operator in TRANSPARENT:
        source = operand.producer.source
        if source is None:
            break
        operand = source
    return operand


def near(operand: Operand, through: Collection[str], depth: int) -> Iterator[Call]:
    """Yield the producers of ``operand``, at most ``depth`` calls back, through operators of ``through`` or casts."""
    todo, observed = [(operand, depth)], set()
    while todo:
        tensor, left = todo.pop()
        call = tensor.producer
        if call is None or call in observed:
            continue
        observed.add(call)
        yield call
        if left and (call.operator in TRANSPARENT or call.operator in through):
            free = call.operator in TRANSPARENT
            todo += [(argument, left if free else left - 1) for argument in call.operands]


def ancestors(operand: Operand, *, since: int = 0, stop: Collection[str] = ()) -> set[Call]:
    """Return the calls that compute ``operand``, from number ``since`` on, not before operators of ``stop``."""
    todo, calls = [operand], set()
    while todo:
        call = todo.pop().producer
        if call is None or call in calls or call.number < since:
            continue
        calls.add(call)
        if call.operator not in stop:
            todo += call.operands
    return calls
