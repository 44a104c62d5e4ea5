"""Arithmetic of float32 matmuls, convolutions and recurrent layers: IEEE, or TF32.

torch's default is neither: IEEE for matmul, TF32 for cuDNN. A comparison with float32 therefore pins the kind, in a
narrow scope. torch 2.9 introduced settings called ``fp32_precision``; with them set, the older ``allow_tf32`` flags and
``get_float32_matmul_precision`` raise if the two disagree, so each torch gets one kind of setting only. Inside the
scope of ``float32_precision`` the older flags show the current setting, so that a model may enter
``torch.backends.cudnn.flags``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Float32Kind = Literal["ieee", "tf32"]
KINDS: tuple[Float32Kind, ...] = ("ieee", "tf32")


@contextlib.contextmanager
def float32_precision(kind: Float32Kind) -> Iterator[None]:
    """Compute float32 matmuls, convolutions and recurrent layers as ``kind`` on every back end, then restore.

    A back end without TF32 hardware computes IEEE under ``"tf32"``. The settings belong to the process: backward passes
    and other threads see them, too. Raises ValueError for any other kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of float32; expected {', '.join(KINDS)}")
    with _pinned_settings(kind) if has_fp32_precision() else _pinned_flags(kind):
        yield


def has_fp32_precision() -> bool:
    """Return whether this torch has the ``fp32_precision`` settings (2.9 and later)."""
    import torch

    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


#: Settings of ``fp32_precision``, parents first: a setting that was never written reads as its parent.
_SETTINGS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("mkldnn", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)


_INHERITED = "none"


@contextlib.contextmanager
def _pinned_settings(kind: Float32Kind) -> Iterator[None]:
    """Pin the settings through ``fp32_precision`` (aten/src/ATen/Context.cpp, ``float32Precision``).

    Setting the parents first leaves settings that inherit from them untouched: the default of cuDNN's convolution, for
    example, has no name by which it could be restored. Code inside may enter ``torch.backends.cudnn.flags``, which
    reads and writes the older flags: those are readable inside, and restored. Compiling inside writes the inherited
    value of cuda.matmul as its own (torch/_dynamo/convert_frame.py, ``preserve_global_state``), which is restored, too.
    """
    from pytest_amp.torch_private import read_float32_setting, readable_flags, write_float32_setting

    before = _State.read()
    try:
        for setting in _SETTINGS:
            if read_float32_setting(*setting) != kind:
                write_float32_setting(*setting, kind)
                before.own.add(setting)
        with readable_flags():
            yield
    finally:
        before.restore()


@dataclass(frozen=True)
class _State:
    """Every setting as it is in force, and the older flags; None for one that torch refuses to read.

    ``own`` are the settings that are known not to inherit.
    """

    settings: dict[tuple[str, str], str]
    cudnn: bool | None
    matmul: str | None
    own: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def read(cls) -> _State:
        from pytest_amp.torch_private import read_float32_setting

        return cls({setting: read_float32_setting(*setting) for setting in _SETTINGS}, _cudnn_flag(), _matmul_flag())

    def restore(self) -> None:
        """Restore the settings, then a flag that code inside has written, which changes settings; then these again."""
        import torch

        from pytest_amp.torch_private import write_cudnn_flag

        self._restore_settings()
        if self.cudnn is not None and self.cudnn != _cudnn_flag():
            write_cudnn_flag(allow_tf32=self.cudnn)
        if self.matmul is not None and self.matmul != _matmul_flag():
            torch.set_float32_matmul_precision(self.matmul)
        self._restore_settings()

    def _restore_settings(self) -> None:
        from pytest_amp.torch_private import read_float32_setting, write_float32_setting

        for setting, value in self.settings.items():
            for written in (value,) if setting in self.own else (_INHERITED, value):
                if read_float32_setting(*setting) != value:
                    write_float32_setting(*setting, written)


def _cudnn_flag() -> bool | None:
    import torch

    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return None


def _matmul_flag() -> str | None:
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@contextlib.contextmanager
def _pinned_flags(kind: Float32Kind) -> Iterator[None]:
    """Pin the flags of torch before 2.9.

    ``set_float32_matmul_precision`` replaces ``cuda.matmul.allow_tf32``, which does not distinguish two of its three
    values. cuDNN's flags are set by its own context manager, since nothing else may set them once torch's own test
    helpers are imported (``torch.backends.disable_global_flags``), as torch.export does.
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
