"""Known faults of torch behind a difference between a compiled step and eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_amp.cases import passes
from pytest_amp.data_files.releases import release_of
from pytest_amp.numerics import Conditions, exceeds
from pytest_amp.numerics.compare import Compared
from pytest_amp.torch_private import PrivateApiGone, backward_without_region

#: Setting of torch.compile with which its backward pass is traced without the region of the forward pass.
BACKWARD_OFF = 'torch._functorch.config.backward_pass_autocast = "off"'

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


def cause_without_graph(breaks: Counter[str]) -> str:
    """Return why Dynamo compiled nothing, by the titles of its graph breaks."""
    if breaks:
        return f"Dynamo cannot trace the loss function or the model: {breaks.most_common(1)[0][0]}"
    return "TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE is set, or the function is one that Dynamo skips"


def cause_of_error(error: RuntimeError, in_float32: Callable[[], object] | None) -> str:
    """Return why only the compiled step raises ``error``; ``in_float32`` runs it without a region, if it can."""
    if "double backward" in str(error):  # torch/_functorch/_aot_autograd/runtime_wrappers.py
        return (
            "the loss differentiates gradients (create_graph=True), and torch.compile supports no second "
            "derivatives: leave this check out, or compile functions that are not differentiated twice"
        )
    try:
        if in_float32 is not None:
            in_float32()
    except Exception as again:
        if passes(again):  # a fault of the machine
            raise
        if str(again) == str(error):
            return "the compiler, not mixed precision: compiled, the step raises the same error in float32"
    return "the compiler: the same step runs in eager"


def cause_in_backward(compare_again: Callable[[], Iterable[Compared]], name: str, scale: float) -> str | None:
    """Return the fault of torch behind an error that disappears if backward is traced without a region.

    The backward pass of a compiled function is traced in the region in which the function is called, and casts what
    eager computes in float32. ``compare_again`` compiles and compares the step again; the error of the tensor ``name``
    may be ``scale`` times as large as allowed. None if it is not within that, if the step raises, or if this torch has
    no setting for it. All compiled code is discarded.
    """
    try:
        with backward_without_region():
            torch.compiler.reset()
            tensors = {tensor.name: tensor for tensor in compare_again()}
    except PrivateApiGone:
        return None
    except Exception as error:
        if passes(error):  # a fault of the machine
            raise
        return None
    finally:
        torch.compiler.reset()
    tensor = tensors.get(name)
    if tensor is None or exceeds(tensor.error, tensor.allowed * scale):
        return None
    return (
        "the compiled backward pass runs in the region of the forward pass, and casts what eager computes in float32 "
        f"there; a fault of torch (pytorch/pytorch#179804), which {BACKWARD_OFF} avoids"
    )


def _batch_norm_of(model: nn.Module, path: str) -> str | None:
    """Return the path of the BatchNorm at ``path`` or directly behind it, in the order of registration."""
    layers = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    places = [index for index, (name, _) in enumerate(layers) if name == path]
    if not places:
        return None
    nearest = layers[places[0] : places[0] + 2]
    return next((name for name, module in nearest if isinstance(module, _BatchNorm)), None)
