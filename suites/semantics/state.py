"""The autocast state of one device type in this thread, and the dtype of a product."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name
from pytest_amp.run.state_guard import nesting_depth

#: The other low-precision dtype, which an inner region may use.
OTHER = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}


@dataclass(frozen=True)
class State:
    """The four values that ``torch.autocast.__enter__`` sets and ``__exit__`` restores."""

    enabled: bool
    dtype: torch.dtype
    cache: bool
    depth: int

    @classmethod
    def now(cls, device_type: str) -> State:
        """Return the state of ``device_type`` in the calling thread."""
        return cls(
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_cache_enabled(),
            nesting_depth(),
        )


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of a product of float32 matrices on ``device`` now, which are neither parameters nor cached."""
    return torch.mm(torch.ones(4, 4, device=device), torch.ones(4, 4, device=device)).dtype


def expect_dtype(amp: SuiteAmp, fact: str, actual: torch.dtype, expected: torch.dtype, *, likely: str) -> None:
    """Record ``actual`` under ``fact``; raise AmpFailure if it is not ``expected``."""
    amp.observe(fact, dtype_name(actual), kind="dtype")
    if actual is not expected:
        raise AmpFailure(
            f"{fact} on {amp.target.id} is {dtype_name(actual)}, the rule says {dtype_name(expected)}",
            label_before="rule",
            before=dtype_name(expected),
            now=f"{dtype_name(actual)} on torch {torch.__version__}, {amp.device.describe()}",
            likely=likely,
        )


def expect_state(amp: SuiteAmp, where: str, actual: object, expected: object, *, likely: str) -> None:
    """Raise AmpFailure if the state ``where`` is not ``expected``."""
    if actual != expected:
        raise AmpFailure(
            f"the autocast state {where} on {amp.target.id} is not what it has to be",
            label_before="rule",
            before=str(expected),
            now=f"{actual} on torch {torch.__version__}",
            likely=likely,
        )
