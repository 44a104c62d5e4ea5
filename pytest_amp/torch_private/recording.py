"""Recording of the operator calls that reach the back end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_amp.precision import dtype_name
from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.modes import each_call


@dataclass(frozen=True)
class Call:
    """One operator call below autocast and autograd: the operator, its tensors and its dtype arguments.

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


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """Record the operator calls that reach the back end inside the block, in order, including calls that fail.

    These are the calls that autocast makes: the casts (``aten::_to_copy``) and the operator, or the parts of a
    composite operator. Raises PrivateApiGone without
    ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    import torch

    calls: list[Call] = []

    def recorded(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if overload.namespace != "prim":  # queries by fake tensors, which compute nothing
            leaves = list(_flat((args, tuple(kwargs.values()))))
            tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
            calls.append(
                Call(
                    overload.name(),
                    tuple(f"{dtype_name(t.dtype)}{list(t.shape)}" for t in tensors),
                    tuple(dtype_name(v) for v in leaves if isinstance(v, torch.dtype)),
                )
            )
        return call_overload(overload, args, kwargs)

    with each_call(recorded):
        yield calls
