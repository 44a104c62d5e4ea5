"""Operators under autocast equal the same operators with autocast off and manual casts of their arguments."""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.rules.registry import qualified, read_registry
from pytest_amp.rules.spec import RuleName

from .operators import Examiner, known_overloads, overloads_with, overloads_with_a_dtype, require

pytestmark = pytest.mark.amp(fake=True)


@pytest.mark.amp_parametrize("overload", known_overloads)
def test_does_what_casting_by_hand_does(amp: SuiteAmp, overload: str, examine: Examiner) -> None:
    """Compare for float32, 16-bit and mixed arguments, and for the other 16-bit format.

    A real device is compared bit for bit, a fake one by casts, dtypes and shapes.
    """
    name = qualified(overload)
    checked = examine("hand_cast", name)
    require(amp, checked, "differs from manual casts", likely="autocast casts too much, or twice")
    if checked.cannot:
        pytest.xfail(f"no kernel for it here: {checked.cannot}")
    if checked.ran:
        amp.observe(f"{name}/result", ", ".join(checked.result), kind="dtype")
        return
    banned = read_registry(amp.device.type).expected[name].name is RuleName.BANNED
    if amp.device.kind is not DeviceKind.FAKE and not banned:
        raise AmpFailure(f"{overload} ran with no arguments at all: {', '.join(checked.refused)} were refused")


@pytest.mark.amp_parametrize("overload", overloads_with_a_dtype)
def test_an_explicit_dtype_is_respected(amp: SuiteAmp, overload: str, examine: Examiner) -> None:
    checked = examine("explicit_dtype", qualified(overload))
    require(amp, checked, "does not respect dtype=", likely="autocast overrides the dtype that the caller passed")


@pytest.mark.amp_parametrize("overload", overloads_with(RuleName.PROMOTE))
def test_mixed_arguments_are_promoted_in_every_order(amp: SuiteAmp, overload: str, examine: Examiner) -> None:
    checked = examine("orders", qualified(overload))
    require(amp, checked, "does not promote mixed arguments", likely="results depend on the order of the arguments")
    if checked.ran:
        amp.observe(f"{qualified(overload)}/promoted", ", ".join(checked.result), kind="dtype")
