"""cuDNN's flags, set without reading or writing TF32; flags of back ends, set even where torch forbids it.

``torch.backends.cudnn.flags`` also reads and writes ``allow_tf32``, which raises if kinds of layers differ in
precision (since torch 2.9). The attributes cannot be set once torch's own test helpers are imported, as torch.export
and torch.compile do in some releases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_amp.torch_private.gone import PrivateApiGone


@contextmanager
def cudnn_enabled(*, enabled: bool) -> Iterator[None]:
    """Run the block with or without cuDNN. Raises PrivateApiGone without ``torch._C._set_cudnn_enabled``."""
    with _switched("enabled", on=enabled):
        yield


@contextmanager
def cudnn_deterministic() -> Iterator[None]:
    """Let cuDNN use deterministic algorithms only. PrivateApiGone without ``torch._C._set_cudnn_deterministic``."""
    with _switched("deterministic", on=True):
        yield


@contextmanager
def _switched(name: str, *, on: bool) -> Iterator[None]:
    import torch

    try:
        get, put = getattr(torch._C, f"_get_cudnn_{name}"), getattr(torch._C, f"_set_cudnn_{name}")
    except AttributeError:
        raise PrivateApiGone(f"torch._C._set_cudnn_{name}") from None
    before = get()
    put(on)
    try:
        yield
    finally:
        put(before)


@contextmanager
def backend_flags_settable() -> Iterator[None]:
    """Allow the attributes of ``torch.backends`` to be set inside the block.

    ``torch.backends.disable_global_flags``, which torch's own test helpers call when they are imported, forbids it
    permanently. Without torch's private context manager nothing changes, and a forbidden assignment raises.
    """
    import torch

    with getattr(torch.backends, "__allow_nonbracketed_mutation", contextlib.nullcontext)():
        yield
