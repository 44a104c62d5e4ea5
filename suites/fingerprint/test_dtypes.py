"""Every operator and module returns the same dtypes as on the pinned release, with autocast off and on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.child_process import ExaminationFailed
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.fingerprint.compare import Change, Difference, differences
from pytest_amp.fingerprint.data import DATA_FILE, load
from pytest_amp.fingerprint.groups import GROUPS, group_of
from pytest_amp.fingerprint.sweep import FingerprintSweep, NoEntries
from pytest_amp.run.targets import Target

pytestmark = pytest.mark.amp(fake=True)


def _entries(amp: SuiteAmp, sweep: FingerprintSweep) -> tuple[str, ...]:
    try:
        return sweep.entries(amp.device)
    except NoEntries as unavailable:
        amp.missing("sweep", f"the operators of torch {torch.__version__} cannot be examined: {unavailable}")


def _expected(amp: SuiteAmp) -> dict[str, set[str | None]]:
    real = amp.device.kind is DeviceKind.ACCELERATOR
    return load().expected(amp.device.type, amp.precision.name, torch.__version__, real=real)


def _is_judged(amp: SuiteAmp) -> bool:
    """Return whether unknown entries fail: on a release that the file covers, and elsewhere under --amp-strict."""
    real = amp.device.kind is DeviceKind.ACCELERATOR
    return load().covers(amp.device.type, torch.__version__, real=real) or amp.config.strict


def _groups(_target: Target) -> Iterable[str]:
    return GROUPS


@pytest.mark.amp_parametrize("group", _groups)
def test_every_entry_returns_the_known_dtypes(amp: SuiteAmp, group: str, sweep: FingerprintSweep) -> None:
    """A pattern is "dtypes with autocast off | with autocast on", each for float32 and for low-precision inputs."""
    names = [name for name in _entries(amp, sweep) if group_of(name) == group]
    losses = len(sweep.losses)
    observed, broken = {}, []
    unlike_baseline: dict[str, AmpFailure] = {}
    for name in names:
        try:
            observed[name] = sweep.fingerprint(name, amp.device, amp.precision.dtype_name)
        except ExaminationFailed as failed:
            broken.append(str(failed))
            continue
        try:
            amp.observe(name, observed[name], kind="dtype")
        except AmpFailure as failure:
            unlike_baseline[name] = failure
    if broken:
        raise AmpFailure(f"{len(broken)} of {len(names)} operators could not be examined: {'; '.join(broken)}")
    expected = {name: texts for name, texts in _expected(amp).items() if name in observed}
    failing = {Change.CHANGED, Change.NEW} if _is_judged(amp) else {Change.CHANGED}
    changed = [difference for difference in differences(expected, observed) if difference.change in failing]
    if changed:
        raise AmpFailure(
            _headline(amp, changed, "other dtypes"),
            label_before="known",
            before=" // ".join(f"{difference.name}: {difference.before}" for difference in changed),
            now=" // ".join(f"{difference.name}: {difference.now}" for difference in changed),
            likely="; ".join(sweep.losses[losses:]) or "a rule, a kernel, or what they are composed of has changed",
            accept=f"in a checkout: python -m tools.fingerprints, and review {DATA_FILE}",
        )
    if unlike_baseline:
        raise _together(amp, unlike_baseline)


def _together(amp: SuiteAmp, failures: dict[str, AmpFailure]) -> AmpFailure:
    """Raise one failure that names every entry that differs from the baseline."""
    if len(failures) == 1:
        return next(iter(failures.values()))
    parts = {
        label: " // ".join(f"{name}: {failure.parts[label]}" for name, failure in failures.items())
        for label in ("baseline", "now")
    }
    likely = dict.fromkeys(failure.parts["likely"] for failure in failures.values())
    return AmpFailure(
        f"{len(failures)} entries on {amp.target.id} are no longer what the baseline has: {', '.join(failures)}",
        label_before="baseline",
        before=parts["baseline"],
        now=parts["now"],
        likely="; ".join(text for text in likely if text is not None),
        accept="the same command with --amp-accept",
    )


def _headline(amp: SuiteAmp, differences: list[Difference], kind: str) -> str:
    names = ", ".join(difference.name for difference in differences)
    return f"{len(differences)} under autocast({amp.device.type}, {amp.precision.dtype_name}) return {kind}: {names}"


def test_no_entry_is_new_or_gone(amp: SuiteAmp, sweep: FingerprintSweep) -> None:
    """Unknown or missing entries fail on a known release; on another one they are recorded, and fail if strict."""
    names, expected = _entries(amp, sweep), _expected(amp)
    new = [name for name in names if name not in expected] if expected else []
    gone = sorted(name for name, texts in expected.items() if name not in names and None not in texts)
    amp.observe("entries", len(names), kind="count")
    amp.observe("new entries", list(new), kind="state")
    amp.observe("gone entries", list(gone), kind="state")
    if (new or gone) and _is_judged(amp):
        raise AmpFailure(
            f"torch's own tests know other operators and modules than on torch {torch.__version__} when it was read",
            label_before="known",
            before=f"{len(expected)} entries ({DATA_FILE})",
            now=f"{len(names)}: " + ", ".join([f"new: {name}" for name in new] + [f"gone: {name}" for name in gone]),
            accept=f"in a checkout: python -m tools.fingerprints, and review {DATA_FILE}",
        )
