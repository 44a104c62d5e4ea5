"""Device, precision and seed under which a check of numerics runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pytest_amp.cases import Case, in_one_line, passes
from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.reasons import NO_KERNEL, likely_of_error
from pytest_amp.numerics.step import Region
from pytest_amp.precision import Precision

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class Conditions:
    """Device, precision and seed of a case's run, and the scale of its tolerances.

    ``draws`` is the number of seeds, starting with ``seed``, over which errors are measured.
    """

    device: Device
    precision: Precision
    seed: int = 0
    tolerance_scale: float = 1.0
    draws: int = 1

    @property
    def region(self) -> Region:
        """Factory of the autocast context that a user would enter."""
        return lambda: self.device.autocast(self.precision.dtype)

    def __str__(self) -> str:
        """Return the text that failures show, such as ``autocast(cpu, bfloat16)``."""
        return f"autocast({self.device.key}, {self.precision.dtype_name})"

    def now(self, value: str) -> str:
        """Append the torch version and the device that computed it to ``value``."""
        return f"{value}, on torch {torch.__version__}, {self.device.describe()}"


@contextmanager
def runs_under(case: Case, conditions: Conditions, also: str = "") -> Iterator[None]:
    """Convert an exception inside the block to an AmpFailure: the case runs in float32, but not in mixed precision.

    ``also`` is a suffix of the message that names further precisions in which the block runs the case.
    """
    try:
        yield
    except Exception as error:
        if passes(error):
            raise
        raise AmpFailure(
            f"{case.name} does not run under {conditions}{also}",
            label_before="fp32",
            before="it runs in float32",
            now=conditions.now(in_one_line(error)),
            likely=likely_of_error(error, case.realise(seed=conditions.seed).model, conditions.precision.dtype)
            or _likely(error, conditions),
        ) from None


def _likely(error: Exception, conditions: Conditions) -> str:
    message = str(error)
    if type(error).__module__.startswith("torch._dynamo"):
        return "the model compiles itself: make it without torch.compile; amp.check_compiled(case) compiles it"
    if any(part in message for part in NO_KERNEL):
        low = conditions.precision.name
        return f"this machine has no kernel for one of its operators in {low}: dtypes= of the marker leaves {low} out"
    if not isinstance(error, RuntimeError):
        return "code of the model or its loss that takes no low-precision tensors, or asks whether autocast is on"
    return "an operator that does not take what it is given under autocast"
