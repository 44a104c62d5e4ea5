"""torch's settings of float32 arithmetic, of torch 2.9 and later, and the equivalent older flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone


def read_float32_setting(backend: str, operator: str) -> str:
    """Return the precision in force, such as ``ieee``: the setting itself, or what it inherits from its parents.

    Raises PrivateApiGone without ``torch._C._get_fp32_precision_getter``.
    """
    return str(_private("_get_fp32_precision_getter")(backend, operator))


def write_float32_setting(backend: str, operator: str, value: str) -> None:
    """Set one precision; ``none`` inherits.

    The attributes ``fp32_precision`` refuse that once torch's own test helpers are imported
    (``torch.backends.disable_global_flags``), and the one of mkldnn as a whole writes the generic setting (torch 2.9
    to 2.15). Raises PrivateApiGone without ``torch._C._set_fp32_precision_setter``.
    """
    _private("_set_fp32_precision_setter")(backend, operator, value)


def write_cudnn_flag(*, allow_tf32: bool) -> None:
    """Set ``cudnn.allow_tf32``, and with it the precision of its convolutions and recurrent layers.

    Raises PrivateApiGone without ``torch._C._set_cudnn_allow_tf32``.
    """
    _private("_set_cudnn_allow_tf32")(allow_tf32)


@contextmanager
def readable_flags() -> Iterator[None]:
    """Let the older flags be read in the block: each says which precision is in force.

    torch 2.9 and later refuse to read ``cudnn.allow_tf32``, ``cuda.matmul.allow_tf32`` and
    ``get_float32_matmul_precision`` where the newer settings differ from what was last written through the older
    flags (aten/src/ATen/Context.cpp), and ``torch.backends.cudnn.flags`` reads the first of them as it is entered.
    Writing the flags would make them readable, too, but could not be undone: cuDNN's own default
    (``Float32Precision::DEFAULT``, TF32 unless a parent says otherwise) has no name by which it could be restored.
    Raises PrivateApiGone without ``torch._C._get_cudnn_allow_tf32``, ``_get_cublas_allow_tf32`` and
    ``_get_float32_matmul_precision``.
    """
    import torch

    readers: dict[str, Callable[[], object]] = {
        "_get_cudnn_allow_tf32": lambda: read_float32_setting("cuda", "conv") == "tf32",
        "_get_cublas_allow_tf32": lambda: read_float32_setting("cuda", "matmul") == "tf32",
        "_get_float32_matmul_precision": _matmul_precision,
    }
    library: Any = torch._C
    originals = {name: _private(name) for name in readers}
    # The attribute holds a reference to its getter, and reads go through that.
    attribute: Any = vars(type(torch.backends.cudnn)).get("allow_tf32")
    if not hasattr(attribute, "getter"):
        raise PrivateApiGone("getter of torch.backends.cudnn.allow_tf32")
    getter = attribute.getter
    try:
        for name, answer in readers.items():
            setattr(library, name, answer)
        attribute.getter = library._get_cudnn_allow_tf32
        yield
    finally:
        attribute.getter = getter
        for name, original in originals.items():
            setattr(library, name, original)


def _matmul_precision() -> str:
    """Return ``set_float32_matmul_precision``'s name for the settings in force; oneDNN's bf16 comes first."""
    if read_float32_setting("mkldnn", "matmul") == "bf16":
        return "medium"
    return "high" if read_float32_setting("cuda", "matmul") == "tf32" else "highest"


def _private(name: str) -> Any:
    import torch

    function = getattr(torch._C, name, None)
    if function is None:
        raise PrivateApiGone(f"torch._C.{name}")
    return function
