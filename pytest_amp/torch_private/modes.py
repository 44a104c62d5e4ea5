"""Handlers for every operator call below autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone


def each_call(handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> AbstractContextManager[Any]:
    """Call ``handler(overload, args, kwargs)`` in place of each operator call that reaches the back end in the block.

    This includes backward passes. Its result is the result of the call; operators that it calls are not handled. A
    higher-order operator, such as flex attention, is decomposed into the operators that its eager kernel calls; without
    ``py_kernels`` it runs as a whole and is not handled. Raises PrivateApiGone without
    ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    mode: AbstractContextManager[Any] = _handing_on()(handler)
    return mode


@functools.cache
def _handing_on() -> Any:
    import torch

    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        raise PrivateApiGone("torch.utils._python_dispatch.TorchDispatchMode") from None
    base: Any = TorchDispatchMode

    class HandingOn(base):  # type: ignore[misc]  # the base has no types
        """Dispatch mode that passes every call to a handler."""

        def __init__(self, handler: Callable[..., Any]) -> None:
            super().__init__()
            self.handler = handler

        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not isinstance(func, torch._ops.OpOverload):
                kernel = getattr(func, "py_kernels", {}).get(torch._C.DispatchKey.CompositeExplicitAutograd)
                if kernel is None:
                    return func(*args, **(kwargs or {}))
                with self:  # without Dynamo, which calls such an operator from within what it compiles
                    without_dynamo: Any = torch.compiler.disable
                    return without_dynamo(kernel)(*args, **(kwargs or {}))
            return self.handler(func, tuple(args), kwargs or {})

    return HandingOn
