"""Known faults of torch behind a difference between a compiled step and eager."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_amp.data_files.releases import release_of
from pytest_amp.numerics import Conditions

#: First release in which traced BatchNorm has the gradients of eager's in fp16 on CUDA.
_BATCH_NORM_MENDED = (2, 15)


def known_cause(model: nn.Module, name: str, conditions: Conditions) -> str | None:
    """Return the fault of torch behind the error of a gradient, and its module; None if none is known.

    On CUDA in fp16 eager runs BatchNorm by cuDNN. A trace calls ``native_batch_norm``, and up to torch 2.14 its
    backward pass rounds the gradient of the bias. The error shows in that gradient, and in the gradient of a bias in
    front of BatchNorm, which is zero up to rounding (``suites/known.toml``, measured with torch 2.11 on an H200).
    """
    is_affected = conditions.device.type == "cuda" and conditions.precision.dtype == torch.float16
    if not is_affected or release_of(torch.__version__) >= _BATCH_NORM_MENDED:
        return None
    norm = _batch_norm_of(model, name.rpartition(".")[0])
    if norm is None:
        return None
    return (
        f"{norm}, a BatchNorm: in fp16 on CUDA torch.compile calls another kernel than eager, which has cuDNN's, and "
        "rounds the gradient of its bias to fp16; a fault of torch up to 2.14"
    )


def _batch_norm_of(model: nn.Module, path: str) -> str | None:
    """Return the path of the BatchNorm at ``path`` or directly behind it, in the order of registration."""
    layers = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    places = [index for index, (name, _) in enumerate(layers) if name == path]
    if not places:
        return None
    nearest = layers[places[0] : places[0] + 2]
    return next((name for name, module in nearest if isinstance(module, _BatchNorm)), None)
