"""Autocast dtypes that are active while a training step computes: none, if the region is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.callers import calling_line
from pytest_amp.numerics.entered_regions import followed_autocast, line_of_region
from pytest_amp.precision import dtype_name

if TYPE_CHECKING:
    from pytest_amp.scaler.iteration import Iteration


def note(device_type: str, dtypes: set[torch.dtype]) -> None:
    """Add the autocast dtype of the device type, if autocast is on."""
    if torch.is_autocast_enabled(device_type):
        dtypes.add(torch.get_autocast_dtype(device_type))


@contextmanager
def noted_at_calls(device_type: str, dtypes: dict[torch.dtype, str | None]) -> Iterator[None]:
    """Note inside the block the autocast dtype at each call of torch, also within modules.

    The line of a dtype is that of the region entered last at its first call, or of that call if nothing in the block
    has entered the region.
    """
    entered: list[tuple[object, str | None]] = []

    def entering(region: Any, enter: Callable[[], Any], frame: FrameType) -> Any:
        result = enter()
        if region.device == device_type:
            entered.append((region, line_of_region(frame)))
        return result

    def leaving(region: Any) -> None:
        while region.device == device_type and entered:
            if entered.pop()[0] is region:
                break

    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.is_autocast_enabled(device_type):
                dtype = torch.get_autocast_dtype(device_type)
                if dtype not in dtypes:
                    line = entered[-1][1] if entered else None
                    dtypes[dtype] = line or calling_line()
            return func(*args, **(kwargs or {}))

    with followed_autocast(entering, leaving), Noting():
        yield


@contextmanager
def noted_in_backward(
    device_type: str, parameters: Iterable[torch.nn.Parameter], dtypes: set[torch.dtype]
) -> Iterator[None]:
    """Call ``note`` inside the block where gradients are accumulated, in the autocast state of backward's caller.

    The engine passes the caller's state to its threads (torch/csrc/autograd/engine.cpp, GraphTask).
    """

    def hook(_parameter: torch.Tensor) -> None:
        note(device_type, dtypes)

    with ExitStack() as hooks:
        for parameter in parameters:
            untyped: Any = parameter
            hooks.callback(untyped.register_post_accumulate_grad_hook(hook).remove)
        yield


def check_region(iteration: Iteration, again: Callable[[], object]) -> None:
    """Check that autocast was on in the test's dtype at or within the model or the loss, and off after it.

    ``again`` runs the training step once more, to look within: it is called if the dtype was not seen at the calls.
    Raises AmpFailure.
    """
    entered, expected = dict.fromkeys(iteration.regions) | iteration.operator_regions, iteration.precision.dtype
    if expected not in entered:
        noted: dict[torch.dtype, str | None] = {}
        with noted_at_calls(iteration.device.type, noted):
            again()
        entered |= noted
    failure = _without_region(iteration, entered, expected) or _backward_within(iteration)
    if failure is not None:
        raise failure


def _backward_within(iteration: Iteration) -> AmpFailure | None:
    """Return the failure of a training step in which backward was called while autocast was on; None without one."""
    dtypes = iteration.in_backward
    if not dtypes:
        return None
    return AmpFailure(
        f"{iteration.case.name}: backward runs inside the region; it belongs outside",
        label_before="rule",
        before="the region ends after the loss: backward runs each operator in the dtypes of its forward pass",
        now=f"autocast({', '.join(sorted(map(dtype_name, dtypes)))}) is on where gradients are accumulated",
        site=", ".join(iteration.backward_lines) or None,
        likely="backward() is within the with block, or autocast was switched on and never off",
    )


def _without_region(
    iteration: Iteration, entered: Mapping[torch.dtype, str | None], expected: torch.dtype
) -> AmpFailure | None:
    """Return the failure of a training step in which autocast was not on in the expected dtype; None if it was.

    ``entered`` maps the dtypes in which it was on to the lines of their regions.
    """
    if expected in entered:
        return None
    names = ", ".join(sorted(map(dtype_name, entered)))
    lines = [line for line in entered.values() if line] or iteration.call_lines
    return AmpFailure(
        f"{iteration.case.name}: the training step computes nothing under autocast({dtype_name(expected)})",
        label_before="rule",
        before="the forward pass is in a region: with iteration.autocast()",
        now=f"autocast is on in {names} only" if entered else "autocast is never on",
        site=", ".join(lines) or None,
        likely="the step opens its own region with another dtype instead of iteration.autocast()"
        if entered
        else "the region is missing, disabled, or closed before the forward pass",
    )
