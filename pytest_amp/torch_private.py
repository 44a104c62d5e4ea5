"""Every private torch API that the project uses, in one place.

Each function says what happens when the API is gone: it raises ``PrivateApiGone`` with the name of
the API, and the check that needed it fails with that name; nothing is passed over in silence.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


class PrivateApiGone(RuntimeError):
    """This torch no longer has a private API that a check rests on."""

    def __init__(self, name: str) -> None:
        """``name`` is the API's, with its module."""
        import torch

        super().__init__(f"torch {torch.__version__} has no {name}: this check cannot look, and does not pass")


def autocast_registrations(device_type: str) -> list[str]:
    """Qualified names (``aten::softmax.int``) of the overloads with an autocast kernel for ``device_type``.

    Read from the running dispatcher. Raises LookupError if this torch has no autocast for the device
    type, and PrivateApiGone without ``torch._C._dispatch_get_registrations_for_dispatch_key``.
    """
    import torch

    read = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if read is None:
        raise PrivateApiGone("torch._C._dispatch_get_registrations_for_dispatch_key")
    try:
        return sorted(read(_autocast_key(device_type)))
    except RuntimeError:  # no such dispatch key
        raise LookupError(f"torch {torch.__version__} has no autocast for {device_type}") from None


def fake_tensor_mode() -> AbstractContextManager[Any]:
    """A context in which tensors have a device, a shape and a dtype but no storage.

    Raises PrivateApiGone without ``torch._subclasses.fake_tensor.FakeTensorMode``.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise PrivateApiGone("torch._subclasses.fake_tensor.FakeTensorMode") from None
    return FakeTensorMode(allow_non_fake_inputs=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


@functools.cache
def shared_fake_tensor_mode() -> AbstractContextManager[Any]:
    """One ``fake_tensor_mode`` for the whole process, which may be entered again and again.

    Making one takes longer than most operators do under it.
    """
    return fake_tensor_mode()


def cpu_has_onednn_kernels(precision: str) -> bool:
    """Whether oneDNN has kernels for ``bf16`` or ``fp16`` on this CPU; False where torch cannot tell.

    fp16 takes AVX512-FP16 or AMX-FP16, bf16 AVX512.
    """
    import torch

    ask = getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported", None)
    return bool(ask()) if ask is not None else False


@dataclass(frozen=True)
class Call:
    """One operator call below autocast and autograd: what ran, on which tensors, with which dtype arguments.

    ``operator`` is the qualified overload; ``tensors`` are its tensor arguments in their order, as
    ``bfloat16[2, 3]``; ``dtypes`` are its dtype arguments.
    """

    operator: str
    tensors: tuple[str, ...]
    dtypes: tuple[str, ...] = ()


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


@functools.cache
def _recorder() -> Any:
    import torch

    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        raise PrivateApiGone("torch.utils._python_dispatch.TorchDispatchMode") from None

    mode: Any = TorchDispatchMode

    class Recorder(mode):  # type: ignore[misc]  # the base has no types
        """Writes down each call and lets it run."""

        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Call] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = kwargs or {}
            if func.namespace != "prim":  # queries that fake tensors make, no work
                given = list(_flat((args, tuple(keywords.values()))))
                tensors = [v for v in given if isinstance(v, torch.Tensor)]
                self.calls.append(
                    Call(
                        func.name(),
                        tuple(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors),
                        tuple(str(v).removeprefix("torch.") for v in given if isinstance(v, torch.dtype)),
                    )
                )
            return func(*args, **keywords)

    return Recorder


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """The operator calls that reach the back end inside the block, in order, those that fail included.

    It sees what autocast passes on: the casts (``aten::_to_copy``) and the operator, or what a
    composite operator is made of. Raises PrivateApiGone without
    ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    with _recorder()() as recorder:
        yield recorder.calls


def find_overload(name: str) -> Any:
    """The callable of a qualified overload, ``aten::softmax.int``; LookupError if this torch has none.

    Calls through ``torch.ops``, which is public; that its overloads go through the dispatcher is not written
    down anywhere.
    """
    import torch

    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except AttributeError:
        raise LookupError(f"torch {torch.__version__} has no operator {name}") from None


def arguments_of(overload: Any) -> dict[str, str]:
    """The arguments of an overload and their types as the schema writes them: ``{"dtype": "Optional[int]"}``.

    Raises PrivateApiGone without the overload's ``_schema``.
    """
    schema = getattr(overload, "_schema", None)
    if schema is None:
        raise PrivateApiGone("torch._ops.OpOverload._schema")
    return {argument.name: str(argument.real_type) for argument in schema.arguments}


def mutates_arguments(overload: Any) -> bool:
    """Whether an overload writes into an argument: the in-place and ``out=`` overloads do.

    Raises PrivateApiGone without the overload's ``_schema``.
    """
    schema = getattr(overload, "_schema", None)
    if schema is None:
        raise PrivateApiGone("torch._ops.OpOverload._schema")
    return bool(schema.is_mutable)


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Inside the block, operators that fail on fake tensors write no traceback to the log.

    Should the logger have another name one day, there is noise, and no other harm.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


#: A dispatch key above autograd's and autocast's that torch keeps for tests: c10/core/DispatchKey.h.
_INTERCEPTION = "TESTING_ONLY_GenericMode"


@dataclass(frozen=True)
class Interception:
    """One operator call before autocast and autograd have seen it."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    keys: Any

    def proceed(self) -> Any:
        """What torch does without the interception, autocast included."""
        return self.overload.redispatch(self.keys.remove(_key(_INTERCEPTION)), *self.args, **self.kwargs)

    def proceed_without_autocast(self, device_type: str) -> Any:
        """As ``proceed``, past the operator's own autocast kernel; operators that it calls are intercepted."""
        keys = self.keys.remove(_key(_INTERCEPTION)).remove(_key(_autocast_key(device_type)))
        return self.overload.redispatch(keys, *self.args, **self.kwargs)


@contextmanager
def intercepted_calls(overloads: Mapping[str, Any], handler: Callable[[Interception], Any]) -> Iterator[None]:
    """Call ``handler`` in place of each of ``overloads`` (by qualified name) inside the block, and return its result.

    Inside composite operators, too, and before autocast. Raises PrivateApiGone without the dispatch
    key, its guard, or a way to redispatch.
    """
    guard = getattr(_torch_c(), "_IncludeDispatchKeyGuard", None)
    if guard is None:
        raise PrivateApiGone("torch._C._IncludeDispatchKeyGuard")
    key = _key(_INTERCEPTION)
    for name in sorted(overloads.keys() - _INTERCEPTED.keys()):
        _INTERCEPTED[name] = _register_interception(name, overloads[name])
    _HANDLERS.append((frozenset(overloads), handler))
    try:
        with guard(key):
            yield
    finally:
        _HANDLERS.pop()


@contextmanager
def without_interception() -> Iterator[None]:
    """Inside a handler: call operators with neither interception nor autocast, as an autocast kernel does."""
    exclude = getattr(_torch_c(), "_ExcludeDispatchKeyGuard", None)
    disable = getattr(_torch_c(), "_DisableAutocast", None)
    if exclude is None or disable is None:
        raise PrivateApiGone("torch._C._ExcludeDispatchKeyGuard or torch._C._DisableAutocast")
    with exclude(_torch_c().DispatchKeySet(_key(_INTERCEPTION))), disable():
        yield


#: Kernels stay registered: below the guard nothing reaches their key. Handlers form a stack.
_INTERCEPTED: dict[str, Any] = {}
_HANDLERS: list[tuple[frozenset[str], Callable[[Interception], Any]]] = []


def _torch_c() -> Any:
    import torch

    return torch._C


@functools.cache
def _key(name: str) -> Any:
    try:
        return _torch_c()._dispatch_key_parse(name)
    except (AttributeError, RuntimeError):
        raise PrivateApiGone(f"dispatch key {name}") from None


def _autocast_key(device_type: str) -> str:
    """A back end of its own may have given PrivateUse1 another name; without that query it goes by the first one."""
    own = getattr(_torch_c(), "_get_privateuse1_backend_name", lambda: "privateuse1")()
    return f"Autocast{'PrivateUse1' if device_type in {own, 'privateuse1'} else device_type.upper()}"


@functools.cache
def _interception_library(namespace: str) -> Any:
    import torch

    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call,unused-ignore]
    if namespace == "_":
        library.fallback(torch.library.fallthrough_kernel, _INTERCEPTION)  # type: ignore[no-untyped-call,unused-ignore]
    return library


def _register_interception(name: str, overload: Any) -> Any:
    if not hasattr(overload, "redispatch"):
        raise PrivateApiGone("torch._ops.OpOverload.redispatch")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        names, handler = _HANDLERS[-1]
        call = Interception(overload, args, kwargs, keys)
        return handler(call) if name in names else call.proceed()

    _interception_library("_")
    namespace, _, rest = name.partition("::")
    _interception_library(namespace).impl(rest, kernel, _INTERCEPTION, with_keyset=True)
    return kernel
