"""Infer the likely cause of an error in mixed precision from its message, its traceback and the model."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from pytest_amp.precision import dtype_name

_LOW = (torch.bfloat16, torch.float16)

#: Parts of the error messages of torch's operators for arguments with different dtypes:
#: aten/src/ATen/native/LinearAlgebra.cpp, Convolution.cpp, aten/src/ATen/core/TensorBase.h and c10/core.
_SEVERAL_DTYPES = (
    *("same dtype", "expected scalar type", "should be the same", "dtype do not match", "expected dtype"),
    "same data type",
)
#: Parts of the error messages of aten and oneDNN for a dtype without a kernel on this machine.
NO_KERNEL = ("not implemented for", "could not create a primitive")
_FUNCTION = str(Path(torch.__file__).parent / "autograd" / "function.py")
_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parent.parent)


def low_parameters(model: torch.nn.Module) -> str | None:
    """Return text that lists the low-precision parameters and buffers of a model; None if there are none."""
    named = (*model.named_parameters(), *model.named_buffers())
    low = [f"{name} is {dtype_name(value.dtype)}" for name, value in named if value.dtype in _LOW]
    if not low:
        return None
    return f"{', '.join(low[:2])}{f' and {len(low) - 2} more' if len(low) > 2 else ''}"


def likely_of_error(error: BaseException, model: torch.nn.Module, low: torch.dtype) -> str | None:
    """Return the likely cause of an error that a step under autocast in ``low`` raised; None if it is unknown.

    ``model`` is the model of the step.
    """
    words = str(error)
    values = _likely_of_values(error, low)
    if values is not None:
        return values
    if any(part in words for part in NO_KERNEL):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    if _is_own(frames):
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        return f"code of the model's own, which refuses what it is given under autocast at {place}{_there(error)}"
    if any(part in words for part in _SEVERAL_DTYPES):
        return _likely_of_dtypes(frames, model) + _there(error)
    return None


def _likely_of_values(error: BaseException, low: torch.dtype) -> str | None:
    """Return the likely cause of values that an operator refuses; None if the error is about something else."""
    words = str(error)
    if "without overflow" in words:  # checked_convert in c10/util/TypeCast.h
        return (
            f"a constant beyond {torch.finfo(low).max:.5g}, where {dtype_name(low)} ends: torch.finfo(x.dtype).min or "
            ".max in place of it, or float32 (x.float() before it)"
        )
    if "modified by an inplace operation" in words:  # torch/csrc/autograd/saved_variable.cpp
        return "the model changes in place what its backward pass needs: a copy before it, or another operator"
    if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # torch exports no name there
        return (
            f"rounding to {dtype_name(low)}: a matrix that products under autocast have rounded is singular, or not "
            "positive-definite. Compute it in float32: autocast(enabled=False) around what makes it, of float32 inputs"
        )
    return None


def _likely_of_dtypes(frames: traceback.StackSummary, model: torch.nn.Module) -> str:
    """Return the likely cause of arguments with different dtypes."""
    parameters = low_parameters(model)
    if parameters is not None:
        return f"low-precision parameters ({parameters}), which should be float32: autocast casts them if required"
    if any(frame.filename == _FUNCTION for frame in frames):
        return (
            "a torch.autograd.Function that is given tensors of both dtypes: torch.amp.custom_fwd(cast_inputs=...) and "
            "custom_bwd, or a cast to one dtype within it"
        )
    return (
        "an operator without an autocast rule, or in a region that is off, is given tensors of both dtypes: a cast to "
        "one of them before it (x.to(y.dtype))"
    )


def _there(error: BaseException) -> str:
    """List the dtypes of the local tensors in the innermost function of user code, if they differ."""
    dtypes: dict[str, torch.dtype] = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.startswith((_TORCH, _PACKAGE)):
            tensors = {name: value for name, value in frame.f_locals.items() if isinstance(value, torch.Tensor)}
            dtypes = {name: value.dtype for name, value in tensors.items() if value.is_floating_point()}
    if len(set(dtypes.values())) < 2:
        return ""
    return f" ({', '.join(f'{name} is {dtype_name(dtype)}' for name, dtype in [*dtypes.items()][:4])})"


def _is_own(frames: traceback.StackSummary) -> bool:
    """Return whether user code itself raised the error, rather than an operator that it called."""
    if not frames or frames[-1].filename.startswith((_TORCH, _PACKAGE)):
        return False
    statement = (frames[-1].line or "").strip()
    return statement.startswith("raise ") or ": raise " in statement
