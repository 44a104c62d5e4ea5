"""Every private torch API that the project uses, in one place.

Each function says what happens when the API is gone: it raises ``PrivateApiGone`` with the name of
the API, and the check that needed it fails with that name; nothing is passed over in silence.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class PrivateApiGone(RuntimeError):
    """This torch no longer has a private API that a check rests on."""

    def __init__(self, name: str) -> None:
        import torch

        super().__init__(f"torch {torch.__version__} has no {name}: this check cannot look, and does not pass")


def autocast_registrations(device_type: str) -> list[str]:
    """Qualified names (``aten::softmax.int``) of the overloads with an autocast kernel for ``device_type``.

    Read from the running dispatcher. Raises PrivateApiGone without
    ``torch._C._dispatch_get_registrations_for_dispatch_key``.
    """
    import torch

    read = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if read is None:
        raise PrivateApiGone("torch._C._dispatch_get_registrations_for_dispatch_key")
    key = {"privateuse1": "PrivateUse1"}.get(device_type, device_type.upper())
    return sorted(read(f"Autocast{key}"))


def fake_tensor_mode() -> AbstractContextManager[Any]:
    """A context in which tensors have a device, a shape and a dtype but no storage.

    Raises PrivateApiGone without ``torch._subclasses.fake_tensor.FakeTensorMode``.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise PrivateApiGone("torch._subclasses.fake_tensor.FakeTensorMode") from None
    return FakeTensorMode(allow_non_fake_inputs=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def cpu_computes_fp16_rnn() -> bool:
    """Whether oneDNN has fp16 kernels on this CPU (AVX512-FP16 or AMX-FP16); False where torch cannot tell."""
    import torch

    ask = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None)
    return bool(ask()) if ask is not None else False
