"""cuDNN switched on and off, without a word about TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_amp.torch_private.gone import PrivateApiGone


@contextmanager
def cudnn_enabled(*, enabled: bool) -> Iterator[None]:
    """The block runs with cuDNN, or without it.

    ``torch.backends.cudnn.flags`` would read and write ``allow_tf32``, too, which raises where each kind of layer has a
    precision of its own (torch 2.9 on); the attribute may not be set once torch's own test helpers are imported. Raises
    PrivateApiGone without ``torch._C._set_cudnn_enabled``.
    """
    import torch

    try:
        get, put = torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled
    except AttributeError:
        raise PrivateApiGone("torch._C._set_cudnn_enabled") from None
    before = get()
    put(enabled)
    try:
        yield
    finally:
        put(before)
