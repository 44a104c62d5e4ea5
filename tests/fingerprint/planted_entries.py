"""Entries of op_db that harm their process as a bad kernel does, each with one such sample among three."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.opinfo import core

_untyped: Any = core


def _samples(_info: Any, device: str, dtype: torch.dtype, *_: Any, **_more: Any) -> Iterator[Any]:
    for kind in ("first", "bad", "last"):
        yield _untyped.SampleInput(torch.ones(2, 2, dtype=dtype, device=device), args=(kind,))


def _operator(bad: Callable[[], None]) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, kind: str) -> torch.Tensor:
        if kind == "bad":
            bad()
        return x @ x if kind == "last" else x + x

    return call


def _raise() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _lacks(says: str) -> Callable[..., torch.Tensor]:
    def call(_x: torch.Tensor, _kind: str) -> torch.Tensor:
        raise RuntimeError(says)

    return call


def _assert_on_the_device() -> None:
    torch.arange(2, device="cuda")[torch.tensor([2], device="cuda")]


def _read_at_an_illegal_address() -> None:
    code = "template <typename T> T at_eight(T x) { return x + *reinterpret_cast<T*>(8); }"
    torch.cuda.jiterator._create_jit_fn(code)(torch.ones(2, device="cuda"))


def _add(name: str, bad: Callable[[], None]) -> None:
    _add_operator(name, _operator(bad))


def _add_operator(name: str, operator: Callable[..., torch.Tensor]) -> None:
    low = {torch.float32, torch.bfloat16, torch.float16}
    invocations.op_db.append(_untyped.OpInfo(name, op=operator, dtypes=low, sample_inputs_func=_samples))


_add("planted_killed", lambda: os.kill(os.getpid(), signal.SIGSEGV))
_add("planted_exits", lambda: os._exit(7))
_add("planted_hangs", lambda: time.sleep(60))
_add("planted_raises", _raise)
_add("planted_asserts", _assert_on_the_device)
_add("planted_illegal_address", _read_at_an_illegal_address)
_add_operator("planted_without_magma", _lacks("Calling eig on a CUDA tensor requires compiling PyTorch with MAGMA."))
_add_operator("planted_without_compiler", _lacks("Error in dlopen: libnvrtc.so.13: cannot open shared object file"))
_add_operator("planted_without_kernel", _lacks("\"eig_cuda\" not implemented for 'Float'"))
