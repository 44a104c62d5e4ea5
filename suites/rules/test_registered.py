"""Every operator with an autocast kernel on this device has the rule that the spec lists."""

from __future__ import annotations

import pytest

from pytest_amp import torch_private
from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.rules.candidates import label_of
from pytest_amp.rules.named import UNREACHABLE
from pytest_amp.rules.observed import UNOBSERVED
from pytest_amp.rules.registry import qualified, read_registry, short
from pytest_amp.rules.spec import SPEC_FILE, load_spec

from .operators import Examiner, environment, every_overload, is_judged, rule_in_spec

pytestmark = pytest.mark.amp(fake=True)

#: The consequence for users of an operator that leaves a rule.
_LIKELY = {
    "lower_precision_fp": "it runs in float32 or gets mixed dtypes: slower, or an error",
    "fp32": "the operator left autocast's float32 list: what comes after it loses precision",
    "fp32_set_opt_dtype": "the operator left autocast's float32 list: what comes after it loses precision",
    "fp32_append_dtype": "the operator left autocast's float32 list: what comes after it loses precision",
    "promote": "mixed dtypes are narrowed or refused",
    "banned": "an unsafe operator runs, and overflows in silence",
}


@pytest.mark.amp_parametrize("overload", every_overload)
def test_rule(amp: SuiteAmp, overload: str, examine: Examiner) -> None:
    name = qualified(overload)
    registry = read_registry(amp.device.type)
    rule = registry.expected.get(name)
    if name not in registry.registered:
        if rule is None:
            amp.observe(name, "none", kind="rule")
            return
        raise AmpFailure(
            f"{overload} has no autocast kernel on {amp.device.type}",
            label_before="rule",
            before=rule_in_spec(rule, amp),
            now=f"gone from the dispatcher of {environment(amp)}",
            likely=_LIKELY[rule.name.value],
            accept=f"give its row in {SPEC_FILE} an until",
        )
    observed = examine.rule(name)
    here = amp.device.kind is not DeviceKind.FAKE and name not in UNREACHABLE and name not in registry.foreign
    if observed.rule == UNOBSERVED and not (here and is_judged(registry, amp)):
        pytest.skip(f"{overload} cannot be classified here: {observed.reason}")
    amp.observe(name, observed.rule, kind="rule")
    if rule is None:
        if name in registry.new and is_judged(registry, amp):
            raise AmpFailure(
                f"{overload} has an autocast kernel on {amp.device.type} that the spec does not know",
                label_before="rule",
                before=f"none ({SPEC_FILE})",
                now=f"{observed.rule} on {environment(amp)}",
                accept=f"give it a row in {SPEC_FILE}",
            )
        return
    if observed.rule != label_of(rule, amp.dtype):
        raise AmpFailure(
            f"{overload} under autocast({amp.device.type}, {amp.precision.dtype_name}) has another rule",
            label_before="rule",
            before=rule_in_spec(rule, amp),
            now=f"{observed.rule} on {environment(amp)}" + (f": {observed.reason}" if observed.reason else ""),
            likely=_LIKELY[rule.name.value],
            accept="edit the spec, or record a new baseline: --amp-record=NEW",
        )


def test_no_operator_is_new_or_gone(amp: SuiteAmp) -> None:
    registry = read_registry(amp.device.type)
    amp.observe("registered", len(registry.registered) - len(registry.foreign), kind="count")
    amp.observe("new operators", [short(name) for name in registry.new], kind="state")
    amp.observe("gone operators", [short(name) for name in registry.gone], kind="state")
    changes = [f"new: {short(name)}" for name in registry.new] + [f"gone: {short(name)}" for name in registry.gone]
    if changes and is_judged(registry, amp):
        raise AmpFailure(
            f"autocast's operators on {amp.device.type} are not those of the spec",
            label_before="rule",
            before=f"{len(registry.expected)} operators ({SPEC_FILE})",
            now=f"{len(registry.registered) - len(registry.foreign)} on {environment(amp)}: {', '.join(changes)}",
            accept=f"edit {SPEC_FILE}",
        )


@pytest.mark.amp(devices=["cpu"])
def test_no_device_type_is_new(amp: SuiteAmp) -> None:
    """Each device type with autocast kernels has rules in the spec, or a documented reason for having none."""
    actual, spec = torch_private.autocast_device_types(), load_spec()
    unknown = [name for name in actual if name not in {*spec.device_types, *spec.left_out}]
    amp.observe("device types", [*actual], kind="state")
    if unknown and is_judged(read_registry(amp.device.type), amp):
        raise AmpFailure(
            f"device types with autocast kernels that the spec does not know: {', '.join(unknown)}",
            label_before="known",
            before=f"{', '.join((*spec.device_types, *spec.left_out))} ({SPEC_FILE})",
            now=environment(amp),
            accept=f"give it [device_types] and rules in {SPEC_FILE}, or a reason under [left_out]",
        )


def test_in_place_and_out_overloads_have_no_kernel(amp: SuiteAmp) -> None:
    registered = [name for name in read_registry(amp.device.type).registered if name.startswith("aten::")]
    writing = [name for name in registered if torch_private.mutates_arguments(torch_private.find_overload(name))]
    if writing:
        raise AmpFailure(
            f"overloads that write into their arguments have an autocast kernel: {', '.join(map(short, writing))}",
            now=environment(amp),
            likely="results are cast into tensors of another dtype than the user made",
        )
