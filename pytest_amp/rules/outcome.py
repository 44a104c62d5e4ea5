"""Outcome of one call below autocast: a recorder sees the casts that autocast makes, then the operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.devices.faults import fault_in
from pytest_amp.precision import dtype_name
from pytest_amp.rules.manual_casts import BANNED_SAYS, Invocation, Refused
from pytest_amp.rules.variations import Variation
from pytest_amp.torch_private import Call

_CAST = "aten::_to_copy"


@dataclass(frozen=True)
class CallOutcome:
    """Outcome of one call below autocast: the calls it made, and its result or its error.

    ``result`` are dtypes and shapes; ``message`` is the error's message, which is not compared, since it may name
    dtypes and addresses.
    """

    calls: tuple[Call, ...]
    result: tuple[str, ...]
    message: str | None = field(default=None, compare=False)

    @property
    def is_banned(self) -> bool:
        """Return whether the call was refused as unsafe."""
        return self.message is not None and BANNED_SAYS in self.message

    def casts(self) -> tuple[str, ...]:
        """Return the casts at its beginning, as ``float32[3, 4] to bfloat16``."""
        return tuple(f"{call.tensors[0]} to {call.dtypes[0]}" for call in self.calls[: _leading(self.calls)])


@contextmanager
def scope(device: Device, variation: Variation) -> Iterator[None]:
    """Create and use the tensors of ``variation`` without gradients or warnings, on fake tensors if it says so.

    cuDNN uses deterministic algorithms only: its transposed convolutions in float64 are otherwise nondeterministic
    reductions, and two equal calls differ.
    """
    with ExitStack() as stack:
        stack.enter_context(torch_private.cudnn_deterministic())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch_private.quiet_fake_tensors())
        stack.enter_context(_tensors(device, variation))
        stack.enter_context(torch.inference_mode() if variation.inference else torch.no_grad())
        yield


def _tensors(device: Device, variation: Variation) -> AbstractContextManager[Any]:
    if device.kind is DeviceKind.FAKE:
        return torch_private.shared_fake_tensor_mode()
    # Not strict, torch would run an operator without a rule for fake tensors on real tensors of these layouts and
    # sizes: cuDNN's convolutions then crash with SIGSEGV (torch 2.11, H200).
    return torch_private.strict_fake_tensor_mode() if variation.faked else device.tensors()


def record(call: Callable[[], Any]) -> CallOutcome:
    """Run ``call`` under a recorder."""
    with torch_private.recorded_calls() as calls:
        try:
            result, message = described(call()), None
        except Refused as refused:
            result, message = ("RuntimeError",), str(refused)
        except Exception as error:  # whatever an operator raises is an outcome
            if fault_in(error) is not None:  # a full device says nothing about the operator
                raise
            result, message = (type(error).__name__,), str(error)
    leading = _leading(calls)
    # The order in which C++ casts a call's arguments is undefined.
    ordered = sorted(calls[:leading], key=repr) + calls[leading:]
    return CallOutcome(tuple(ordered), result, message)


def _leading(calls: Iterable[Call]) -> int:
    count = 0
    for call in calls:
        if call.operator != _CAST:
            break
        count += 1
    return count


def described(result: Any) -> tuple[str, ...]:
    """Return the dtype and shape of each tensor in a result, and the type of anything else."""
    if isinstance(result, torch.Tensor):
        return (f"{dtype_name(result.dtype)}{list(result.shape)}",)
    if isinstance(result, (list, tuple)):
        return tuple(text for item in result for text in described(item))
    return (type(result).__name__,)


def under_autocast(call: Invocation, device: Device, low: torch.dtype) -> CallOutcome:
    """Record the outcome of ``call`` under autocast."""
    with device.autocast(low):
        return record(call)
