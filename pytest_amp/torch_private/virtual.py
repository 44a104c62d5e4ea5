"""Tensors that have one dtype for torch and carry float64 values, and handlers of operator calls on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pytest_amp.torch_private import exposed
from pytest_amp.torch_private.cached import forget_cached
from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.dispatcher import schema_of
from pytest_amp.torch_private.gone import PrivateApiGone
from pytest_amp.torch_private.modes import each_call
from pytest_amp.torch_private.trees import Layout, flat


@dataclass(frozen=True)
class Dispatched:
    """One operator call below autocast and autograd, of the forward or the backward pass."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @functools.cached_property
    def flat(self) -> tuple[list[Any], Layout]:
        """The arguments as a flat list, which must not be changed, and their layout."""
        return flat((self.args, self.kwargs))

    def __call__(self) -> Any:
        """Make the call, which runs the kernel if the tensors are real."""
        return call_overload(self.overload, self.args, self.kwargs)


Handler = Callable[[Dispatched], Any]

#: Handlers of the active modes, innermost last: for calls that reach a virtual tensor but not the mode.
_HANDLERS: list[Handler] = []


def virtual_tensor(values: Any, dtype: Any, *, requires_grad: bool = False) -> Any:
    """Return a tensor that carries ``values``, with their shape and strides, and has ``dtype`` for torch.

    Autograd, autocast and type promotion see ``dtype``. The handler of ``dispatched_calls`` computes the results of
    operators; outside of it every operator on the tensor raises, and caches of functions drop it. numpy and Python read
    the values rounded to ``dtype``, ``data_ptr`` points to memory with these values, and C++ code that requests the
    tensor's memory gets a RuntimeError. torch makes no wrapper of a compressed sparse layout: it is converted to the
    coordinate layout. Raises PrivateApiGone without ``torch.Tensor._make_wrapper_subclass``,
    ``torch._C._DisableTorchDispatch`` or ``torch._C._set_throw_on_mutable_data_ptr``.
    """
    return _virtual()(_with_coordinates(values), dtype, requires_grad)


def _with_coordinates(values: Any) -> Any:
    import torch

    compressed = values.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    return values.to_dense().to_sparse() if compressed else values


def values_of(tensor: Any) -> Any:
    """Return the float64 values that a virtual tensor carries; None for any other tensor."""
    if not isinstance(tensor, _virtual()):
        return None
    exposed.read_back(tensor.amp_values)
    return tensor.amp_values


def has_memory(tensor: Any) -> bool:
    """Return whether a tensor has memory, unlike meta tensors and the zero tangents of forward-mode AD.

    Raises PrivateApiGone without ``torch.Tensor._is_zerotensor``.
    """
    is_zero = getattr(tensor, "_is_zerotensor", None)
    if is_zero is None:
        raise PrivateApiGone("torch.Tensor._is_zerotensor")
    return not (tensor.is_meta or is_zero())


@contextmanager
def dispatched_calls(handler: Handler, *, virtual_only: bool = False) -> Iterator[None]:
    """Call ``handler`` in place of each operator that reaches the back end inside the block, and return its result.

    This includes the backward pass; with ``virtual_only`` only operators on virtual tensors are handled. Operators
    that the handler calls are not. Raises PrivateApiGone without
    ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    _HANDLERS.append(handler)
    try:
        with nullcontext() if virtual_only else each_call(lambda *call: handler(Dispatched(*call))):
            yield
    finally:
        _HANDLERS.pop()
        if not _HANDLERS:
            exposed.forget()
            if _virtual.cache_info().currsize:
                forget_cached(_virtual())


def _real(self: Any) -> Any:
    """Return a real tensor with a virtual tensor's dtype and values, for use outside of torch."""
    import torch

    with torch._C._DisableTorchDispatch():
        exposed.read_back(self.amp_values)
        return self.amp_values.detach().to(self.dtype)


def _data_ptr(self: Any) -> int:
    import torch

    with torch._C._DisableTorchDispatch():
        return int(exposed.memory_of(self.amp_values.detach(), self.dtype).data_ptr())


def _numpy(self: Any, *, force: bool = False) -> Any:
    if self.requires_grad and not force:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    return _real(self).numpy(force=force)


def _tolist(self: Any) -> Any:
    return _real(self).tolist()


def _deep_copy(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) not in memo:
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
    return memo[id(self)]


@functools.cache
def _virtual() -> Any:
    import torch

    if not hasattr(torch.Tensor, "_make_wrapper_subclass"):
        raise PrivateApiGone("torch.Tensor._make_wrapper_subclass")
    for name in ("_DisableTorchDispatch", "_set_throw_on_mutable_data_ptr"):
        if not hasattr(torch._C, name):
            raise PrivateApiGone(f"torch._C.{name}")
    tensor: Any = torch.Tensor

    class Virtual(tensor):  # type: ignore[misc]  # the base has no types
        """Wrapper tensor without memory; ``amp_values`` are its values."""

        @staticmethod
        def __new__(cls: Any, values: Any, dtype: Any, requires_grad: bool = False) -> Any:  # noqa: FBT001, FBT002
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                values.size(),
                strides=values.stride(),
                storage_offset=values.storage_offset(),
                dtype=dtype,
                layout=values.layout,
                device=values.device,
                requires_grad=requires_grad,
            )
            torch._C._set_throw_on_mutable_data_ptr(tensor)  # it has no memory: a kernel that uses it would crash
            return tensor

        def __init__(self, values: Any, dtype: Any, requires_grad: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
            self.amp_values = values

        __torch_function__ = torch._C._disabled_torch_function_impl
        __deepcopy__, numpy, tolist, data_ptr = _deep_copy, _numpy, _tolist, _data_ptr

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not _HANDLERS:
                raise RuntimeError(f"{func} on a tensor of a run that has ended: the model keeps it between its calls")
            return _HANDLERS[-1](Dispatched(func, tuple(args), kwargs or {}))

        def __repr__(self) -> str:
            return f"virtual_tensor({self.amp_values!r}, {self.dtype})"

    return Virtual


@dataclass(frozen=True)
class Aliasing:
    """The aliasing of an overload's results in its schema: views of an argument, or an argument written in place."""

    views: bool
    writes: bool


@functools.cache
def aliasing_of(overload: Any) -> Aliasing:
    """Read the aliasing of an overload's results from its schema. Raises PrivateApiGone without ``_schema``."""
    schema = schema_of(overload)
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    writes = any(alias.is_write for alias in aliases) or bool(schema.is_mutable)
    return Aliasing(bool(aliases) and not writes, writes)


@functools.cache
def written_arguments(overload: Any) -> tuple[str, ...]:
    """Return the names of the arguments that ``overload`` writes to. Raises PrivateApiGone without ``_schema``."""
    arguments = schema_of(overload).arguments
    return tuple(
        argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write
    )


@functools.cache
def _has_aliases(overload: Any) -> bool:
    """Return whether the schema of an overload annotates any argument or result as an alias."""
    schema = schema_of(overload)
    return any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))


def with_aliases(call: Dispatched, result: Any) -> Any:
    """Return ``result`` with the storages that torch expects; for an argument written in place, the argument itself.

    The indices and values of a sparse tensor are returned unchanged: it has no storage, and torch crashes without one.

    Raises PrivateApiGone without ``torch.utils._python_dispatch.return_and_correct_aliasing``.
    """
    try:
        from torch.utils._python_dispatch import return_and_correct_aliasing
    except ImportError:
        raise PrivateApiGone("torch.utils._python_dispatch.return_and_correct_aliasing") from None
    if not _has_aliases(call.overload):
        return result
    if aliasing_of(call.overload).views and any(_is_sparse(argument) for argument in call.args):
        return result
    correct: Any = return_and_correct_aliasing
    return correct(call.overload, call.args, call.kwargs, result)


def _is_sparse(argument: Any) -> bool:
    import torch

    return isinstance(argument, torch.Tensor) and argument.layout is torch.sparse_coo


@functools.cache
def is_random(overload: Any) -> bool:
    """Return whether an overload draws random numbers from torch's generator."""
    import torch

    return torch.Tag.nondeterministic_seeded in overload.tags


def sequence_number() -> int:
    """Return the sequence number of the next node of the autograd graph in this thread.

    Raises PrivateApiGone without ``torch._C._autograd._get_sequence_nr``.
    """
    import torch

    read = getattr(torch._C._autograd, "_get_sequence_nr", None)
    if read is None:
        raise PrivateApiGone("torch._C._autograd._get_sequence_nr")
    return int(read())


def current_node() -> Any:
    """Return the node whose backward is running in this thread; None outside a backward pass.

    Raises PrivateApiGone without ``torch._C._current_autograd_node``.
    """
    import torch

    read = getattr(torch._C, "_current_autograd_node", None)
    if read is None:
        raise PrivateApiGone("torch._C._current_autograd_node")
    return read()


def number_of(node: Any) -> int:
    """Return the sequence number of an autograd node. Raises PrivateApiGone without ``Node._sequence_nr``."""
    if not hasattr(node, "_sequence_nr"):
        raise PrivateApiGone("torch.autograd.graph.Node._sequence_nr")
    return int(node._sequence_nr())


@functools.cache
def result_kinds(overload: Any) -> tuple[str, ...]:
    """Return the types of an overload's results as in its schema: ``("Tensor", "List[Tensor]")``.

    Raises PrivateApiGone without the overload's ``_schema``.
    """
    return tuple(str(result.type) for result in schema_of(overload).returns)


@functools.cache
def returns_tensors(overload: Any) -> bool:
    """Return whether any result of ``overload`` is a tensor."""
    return any("Tensor" in kind for kind in result_kinds(overload))
