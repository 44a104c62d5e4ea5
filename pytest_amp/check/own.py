"""Low precision that a model's code selects itself: its casts and arithmetic, which can be disabled by function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from pytest_amp.check.decisions import Decisions, Disturbance, is_random
from pytest_amp.lint.place import Place, calling_place
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.sites import followed_modules
from pytest_amp.torch_private import flat, writes_in_place
from pytest_amp.torch_private.trees import tree_map

#: File and first line of a function, whose low precision is disabled as a unit.
Key: TypeAlias = tuple[str, int]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: Methods that cast a tensor in Python; autocast's own casts do not pass through them.
_CASTS = frozenset({"to", "half", "bfloat16", "type", "type_as"})
#: Factories of memory without values, which casts nothing: what is written to it later may be a cast.
_UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty"})
#: Methods that write a tensor's values into another one, with the positions of both.
_WRITES = {"copy_": (0, 1), "__setitem__": (0, 2)}
#: Attribute access, and functions that need the dtype of an existing tensor.
_UNTOUCHED = ("__get__", "__set__", "__setitem__", "requires_grad_", "backward", "copy_")


@dataclass
class Part:
    """Function of the user's program, or of a library, that casts to a low dtype or computes in one.

    ``lines`` are the user's lines, and ``libraries`` those of an installed library. ``cast_lines`` are the lines that
    cast to a low dtype, and ``dtypes`` the dtypes of these casts. ``module`` is the first module that ran the function.
    """

    key: Key
    module: str
    function: str
    lines: dict[str, None] = field(default_factory=dict)
    libraries: dict[str, None] = field(default_factory=dict)
    cast_lines: dict[str, None] = field(default_factory=dict)
    dtypes: set[torch.dtype] = field(default_factory=set)

    def is_at(self, site: str, message: str) -> bool:
        """Return whether a finding with this line and message is about the function."""
        if self.libraries:
            return any(line in message for line in self.libraries)
        return site in self.lines


@dataclass
class OwnPrecision:
    """Run of a step that disables the low precision of some functions, and notes all functions that have any.

    With ``decisions`` the run is one of an evaluation: only functions outside of modules and of ``untouched`` ones
    count, the decisions that they take are recorded or replayed, and their results are changed by ``disturbance``.
    """

    model: torch.nn.Module
    left_out: frozenset[Key] = frozenset()
    parts: dict[Key, Part] = field(default_factory=dict)
    decisions: Decisions | None = None
    disturbance: Disturbance | None = None
    _depth: int = field(default=0, init=False)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Skip casts to a low dtype inside the block, and widen low-precision arguments to float32."""
        names = {id(module): name for name, module in self.model.named_modules()}
        running: list[torch.nn.Module] = []

        def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.decisions is None:
                return self._call(func, args, kwargs, names.get(id(running[-1]), "") if running else "")
            name = getattr(func, "__name__", "")
            if running or self._depth or is_random(name):
                return func(*args, **kwargs)
            result = self._call(func, args, kwargs, "")
            if self.disturbance is not None and name not in _UNTOUCHED:
                result = self.disturbance.disturb(name, args, kwargs, result)
            return self.decisions.decide(name, args, kwargs, result)

        with followed_modules(running), _Calls(call):
            yield

    def untouched(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return the function, whose calls do not belong to an evaluation."""

        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], module: str) -> Any:
        name = getattr(func, "__name__", "")
        leaves = [] if name in _UNTOUCHED else flat((args, kwargs))[0]
        low = any(isinstance(leaf, torch.Tensor) and leaf.dtype in LOW for leaf in leaves)
        is_cast = name in _CASTS and bool(args) and isinstance(args[0], torch.Tensor)
        is_factory = kwargs.get("dtype") in LOW and not is_cast
        written = _narrowed(name, args)
        place = calling_place() if is_cast or is_factory or low or written else None
        if place is None or place.is_torch:
            return func(*args, **kwargs)
        if is_cast:
            return self._cast(func, args, kwargs, place, module)
        cast = kwargs.get("dtype") if is_factory and name not in _UNWRITTEN else written
        part = self._part(place, module, cast=cast)
        if part.key in self.left_out:
            if is_factory:
                kwargs = {**kwargs, "dtype": torch.float32}
            elif not _is_in_place(name, kwargs) or _is_wide(kwargs.get("out", args[:1])):
                args, kwargs = tree_map(_widened, (args, kwargs))
        return func(*args, **kwargs)

    def _cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place, module: str) -> Any:
        """Perform the model's cast; in a disabled function a cast to a low dtype only changes the device."""
        source, result = args[0], func(*args, **kwargs)
        narrows = isinstance(result, torch.Tensor) and result.dtype in LOW and source.dtype.is_floating_point
        if not narrows or source.dtype in LOW:
            return result
        part = self._part(place, module, cast=result.dtype)
        return source.to(result.device) if part.key in self.left_out else result

    def _part(self, place: Place, module: str, *, cast: torch.dtype | None) -> Part:
        part = self.parts.setdefault(place.key, Part(place.key, module, place.function))
        if place.line:
            part.lines.setdefault(place.line)
        if place.library:
            part.libraries.setdefault(place.library)
        if cast is not None:
            part.cast_lines.setdefault(place.library or place.line)
            part.dtypes.add(cast)
        return part


class _Calls(TorchFunctionMode):
    """Mode that passes each call of a torch function to a handler."""

    def __init__(self, handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._handler = handler

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handler(func, tuple(args), dict(kwargs or {}))


def _narrowed(name: str, args: tuple[Any, ...]) -> torch.dtype | None:
    """Return the low dtype of a tensor into which a call writes values of a wider one; None for other calls."""
    if name not in _WRITES or len(args) <= max(_WRITES[name]):
        return None
    target, source = (args[place] for place in _WRITES[name])
    if not isinstance(target, torch.Tensor) or not isinstance(source, torch.Tensor):
        return None
    narrows = target.dtype in LOW and source.is_floating_point() and source.dtype not in LOW
    return target.dtype if narrows else None


def _is_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    """Return whether a function writes to a tensor, whose dtype is then fixed."""
    return name in _WRITES or writes_in_place(name, kwargs)


def _is_wide(target: Any) -> bool:
    """Return whether a function writes to a float32 tensor, which may be low-precision in an unchanged run."""
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 for leaf in flat(target)[0])


def _widened(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in LOW else leaf
