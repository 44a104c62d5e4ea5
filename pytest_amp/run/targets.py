"""Target of a test: one device and one precision."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_amp.devices.base import Device
from pytest_amp.failure import AmpUsageError, is_usage_error
from pytest_amp.hookspecs import yielded
from pytest_amp.precision import BF16, LOW, TF32, Precision
from pytest_amp.precision.float32 import float32_precision

if TYPE_CHECKING:
    import torch

    from pytest_amp.cases import Case


__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class Target:
    """One device and one precision. ``missing`` is the reason if the device or dtype is missing, which was allowed."""

    device: Device
    precision: Precision
    missing: str | None = None
    config: pytest.Config | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """Return the part of test ids: ``cuda-bf16``, ``fake-xpu-fp16``."""
        return f"{self.device.key}-{self.precision.name}"

    def bound_precision(self) -> Precision:
        """Return the precision with the context in which the device computes in it."""
        return replace(self.precision, enter=partial(_enter, self.device, self.precision))

    def autocast(
        self, *, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Return an autocast region on the device, in the target's dtype by default.

        For fp32 and tf32, which are not autocast dtypes, the region is disabled. Raises AmpUsageError for a dtype for
        which torch would disable the region, at most with a warning, and for flags that are not bools.
        """
        for name, flag in (("enabled", enabled), ("cache_enabled", cache_enabled)):
            if not isinstance(flag, bool):
                raise AmpUsageError(f"autocast was given {name}={flag!r}; expected True or False")
        low = [precision.dtype for precision in LOW.values()]
        if dtype is not None and enabled and dtype not in low:
            raise AmpUsageError(f"autocast was given dtype={dtype!r}; expected {', '.join(map(str, low))}")
        if dtype is None and not self.precision.is_low:
            return self.device.autocast(BF16.dtype, enabled=False, cache_enabled=cache_enabled)
        return self.device.autocast(dtype or self.precision.dtype, enabled=enabled, cache_enabled=cache_enabled)

    def added_cases(self) -> list[Case]:
        """Return the cases that the hook pytest_amp_cases yields.

        Raises AmpUsageError for anything else that it yields.
        """
        if self.config is None:
            return []
        from pytest_amp.cases import Case

        return yielded("pytest_amp_cases", self.config.hook.pytest_amp_cases(), Case)


def _enter(device: Device, precision: Precision) -> AbstractContextManager[None]:
    if precision.is_low:
        return device.autocast(precision.dtype)
    return float32_precision("tf32" if precision == TF32 else "ieee")
