"""Autocast's rules for CUDA on a CPU: programs run their operators in the dtypes of a GPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_amp.rules.manual_casts import Invocation, dtype_argument, manual_plan
from pytest_amp.rules.spec import RuleName, expected
from pytest_amp.torch_private import arguments_of, find_overload, has_overload


@contextlib.contextmanager
def rules_of_cuda() -> Iterator[None]:
    """Register CUDA's rules as those of the CPU inside the block.

    Operators that only the CPU has rules for run as without autocast, except convolutions and recurrent layers, whose
    kernels are torch's own.
    """
    rules, replaced = expected("cuda", torch.__version__), expected("cpu", torch.__version__)
    untyped: Any = torch.library
    library = untyped.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the key has a kernel already
            for name in sorted({*rules, *replaced}):
                rule = rules.get(name)
                known = name.startswith("aten::") and has_overload(name)
                before = replaced.get(name)
                same = rule is not None and before is not None and rule.name is before.name
                if not known or same or (rule is not None and rule.own_kernel is not None):
                    continue
                kernel = untyped.fallthrough_kernel if rule is None else _kernel(name, rule.name)
                library.impl(name.removeprefix("aten::"), kernel, "AutocastCPU")
        yield
    finally:
        library._destroy()  # a collected library removes its kernels later


def _kernel(name: str, rule: RuleName) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        invocation = _with_dtype_by_name(name, args, kwargs)
        dtype = torch.get_autocast_dtype("cpu")
        with torch._C._DisableAutocast():
            return manual_plan(rule, invocation, device_type="cpu", dtype=dtype).carried_out(invocation)()

    return run


def _with_dtype_by_name(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Invocation:
    """Return the call with its optional dtype argument as a keyword, which the rules expect."""
    dtype = dtype_argument(name)
    names = [*arguments_of(find_overload(name))]
    first = len(names) if dtype is None else names.index(dtype)
    return Invocation(name, args[:first], {**kwargs, **dict(zip(names[first:], args[first:], strict=False))})
