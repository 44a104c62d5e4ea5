"""How float32 matmuls, convolutions and recurrent layers are computed: IEEE, or TF32.

torch's default is neither: IEEE for matmul, TF32 for cuDNN. A comparison against float32 therefore
pins the kind, in a narrow scope. torch 2.9 brought settings called ``fp32_precision``, beside which
the older ``allow_tf32`` flags and ``get_float32_matmul_precision`` raise where the two disagree, so
each torch gets one kind of setting only. Inside the scope of ``float32_precision``, use
``fp32_precision``, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

Float32Kind = Literal["ieee", "tf32"]
KINDS: tuple[Float32Kind, ...] = ("ieee", "tf32")


@contextlib.contextmanager
def float32_precision(kind: Float32Kind) -> Iterator[None]:
    """Compute float32 matmuls, convolutions and recurrent layers as ``kind``, on every back end, and restore.

    A back end without TF32 hardware computes IEEE under ``"tf32"``. The settings are the process's own:
    backward passes and other threads see them, too. Raises ValueError for any other kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of float32; valid: {', '.join(KINDS)}")
    with _pinned_settings(kind) if has_fp32_precision() else _pinned_flags(kind):
        yield


def has_fp32_precision() -> bool:
    """Whether this torch has the ``fp32_precision`` settings (2.9 and later)."""
    import torch

    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


@contextlib.contextmanager
def _pinned_settings(kind: Float32Kind) -> Iterator[None]:
    """Through ``fp32_precision`` (aten/src/ATen/Context.cpp, ``float32Precision``).

    The settings are a tree, and one that was never set reads as its parent does. Setting the parents
    first leaves those alone: the default of cuDNN's convolution, for one, has no name by which it could
    be restored. What is compiled inside writes what cuda.matmul inherits as its own
    (torch/_dynamo/convert_frame.py, ``preserve_global_state``), which is put back, too.
    """
    before: list[tuple[Any, str]] = []
    read = [(setting, setting.fp32_precision) for setting in _settings()]
    try:
        for setting in _settings():
            value = setting.fp32_precision
            if value != kind:
                setting.fp32_precision = kind
                before.append((setting, value))
        yield
    finally:
        for setting, value in reversed(before):
            setting.fp32_precision = value
        for setting, value in read:
            if setting.fp32_precision != value:
                setting.fp32_precision = value


def _settings() -> list[Any]:
    """Every holder of an ``fp32_precision``, parents first.

    Without the parent of mkldnn's: its setter writes the generic one (torch 2.9 to 2.14).
    """
    from torch import backends

    cudnn: Any = backends.cudnn
    mkldnn: Any = backends.mkldnn
    cuda = [cudnn, backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    return [backends, *cuda, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


@contextlib.contextmanager
def _pinned_flags(kind: Float32Kind) -> Iterator[None]:
    """Through the flags of torch before 2.9.

    ``set_float32_matmul_precision`` stands for ``cuda.matmul.allow_tf32``, which reads two of its three
    values alike. cuDNN's flags are set by its own context manager, since nothing else may set them once
    torch's own test helpers are imported (``torch.backends.disable_global_flags``), as torch.export does.
    """
    import torch

    cudnn: Any = torch.backends.cudnn
    matmul, names = torch.get_float32_matmul_precision(), ("enabled", "benchmark", "benchmark_limit", "deterministic")
    try:
        torch.set_float32_matmul_precision("highest" if kind == "ieee" else "high")
        with cudnn.flags(**{name: getattr(cudnn, name) for name in names}, allow_tf32=kind == "tf32"):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
