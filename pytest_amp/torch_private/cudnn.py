"""cuDNN's switches, set without a word about TF32; flags of back ends, set where torch has forbidden it.

``torch.backends.cudnn.flags`` would read and write ``allow_tf32``, too, which raises where each kind of layer has a
precision of its own (torch 2.9 on); the attributes may not be set once torch's own test helpers are imported, as
torch.export and torch.compile do in some releases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_amp.torch_private.gone import PrivateApiGone


@contextmanager
def cudnn_enabled(*, enabled: bool) -> Iterator[None]:
    """The block runs with cuDNN, or without it. Raises PrivateApiGone without ``torch._C._set_cudnn_enabled``."""
    with _switched("enabled", on=enabled):
        yield


@contextmanager
def cudnn_deterministic() -> Iterator[None]:
    """Only deterministic algorithms are taken. Raises PrivateApiGone without ``torch._C._set_cudnn_deterministic``."""
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
    """Attributes of ``torch.backends`` may be set in the block, whoever has forbidden it.

    ``torch.backends.disable_global_flags``, which torch's own test helpers call as they are imported, forbids it for
    good. Where the private context manager behind it is gone, nothing is changed: what cannot be set raises.
    """
    import torch

    with getattr(torch.backends, "__allow_nonbracketed_mutation", contextlib.nullcontext)():
        yield
