"""Interception of operator calls above autocast and autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_amp.torch_private.dispatcher import autocast_key, dispatch_key, torch_c
from pytest_amp.torch_private.gone import PrivateApiGone

#: A dispatch key above autograd's and autocast's that torch reserves for tests: c10/core/DispatchKey.h.
_INTERCEPTION = "TESTING_ONLY_GenericMode"

#: The keys of transforms of ``torch.func``, which are above autocast's.
_TRANSFORMS = ("FuncTorchDynamicLayerFrontMode", "FuncTorchBatched", "FuncTorchGradWrapper")


@dataclass(frozen=True)
class Interception:
    """One operator call above autocast and autograd."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    keys: Any

    @property
    def precedes_a_transform(self) -> bool:
        """Return whether a transform of ``torch.func`` takes the call before autocast does.

        It makes other calls from it, which are intercepted: the batching rule of ``linear`` a product and a sum.
        """
        return any(self.keys.has(dispatch_key(name)) for name in _TRANSFORMS)

    def proceed(self) -> Any:
        """Make the call as torch does without the interception, including autocast."""
        return self.overload.redispatch(self.keys.remove(dispatch_key(_INTERCEPTION)), *self.args, **self.kwargs)

    def proceed_without_autocast(self, device_type: str) -> Any:
        """Make the call below the operator's own autocast kernel; operators that it calls are intercepted."""
        keys = self.keys.remove(dispatch_key(_INTERCEPTION)).remove(dispatch_key(autocast_key(device_type)))
        return self.overload.redispatch(keys, *self.args, **self.kwargs)


@contextmanager
def intercepted_calls(overloads: Mapping[str, Any], handler: Callable[[Interception], Any]) -> Iterator[None]:
    """Call ``handler`` in place of each of ``overloads`` (by qualified name) inside the block, and return its result.

    This includes calls inside composite operators, and happens above autocast. Raises PrivateApiGone without the
    dispatch key, its guard, or a way to redispatch.
    """
    guard = getattr(torch_c(), "_IncludeDispatchKeyGuard", None)
    if guard is None:
        raise PrivateApiGone("torch._C._IncludeDispatchKeyGuard")
    key = dispatch_key(_INTERCEPTION)
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
    """Call operators without interception or autocast, as an autocast kernel does; for use inside a handler."""
    exclude = getattr(torch_c(), "_ExcludeDispatchKeyGuard", None)
    disable = getattr(torch_c(), "_DisableAutocast", None)
    if exclude is None or disable is None:
        raise PrivateApiGone("torch._C._ExcludeDispatchKeyGuard or torch._C._DisableAutocast")
    with exclude(torch_c().DispatchKeySet(dispatch_key(_INTERCEPTION))), disable():
        yield


#: Kernels stay registered: without the guard no call reaches their key. Handlers form a stack.
_INTERCEPTED: dict[str, Any] = {}
_HANDLERS: list[tuple[frozenset[str], Callable[[Interception], Any]]] = []


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
