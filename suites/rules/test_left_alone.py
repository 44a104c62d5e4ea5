"""Inputs and operators without a rule stay unchanged: other dtypes, other devices, other operators."""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.rules.registry import qualified, read_registry
from pytest_amp.rules.unregistered import UNREGISTERED, difference

from .operators import Examiner, known_overloads, require

pytestmark = pytest.mark.amp(fake=True)


@pytest.mark.amp_parametrize("overload", known_overloads)
def test_other_dtypes_and_other_devices(amp: SuiteAmp, overload: str, examine: Examiner) -> None:
    """float64, integers, complex values, and other devices' tensors are not cast, even if other arguments are."""
    checked = examine("left_alone", qualified(overload))
    require(amp, checked, "casts what it should leave alone", likely="float64 or complex values lose precision")


def test_operators_without_a_kernel(amp: SuiteAmp) -> None:
    """Operators without a kernel include in-place and ``out=`` overloads."""
    registered = read_registry(amp.device.type).registered
    different = [
        f"{overload}: {changed}"
        for overload in UNREGISTERED
        if qualified(overload) not in registered and (changed := difference(overload, amp.device, amp.dtype))
    ]
    if different:
        raise AmpFailure(
            f"operators without an autocast kernel run otherwise under autocast: {'; '.join(different)}",
            likely="autocast no longer lets through what it does not know",
        )
