"""Report of a test: its attached data, the wording of its failure, and the failures that --amp-known accepts."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from pytest_amp.config import AmpConfig
from pytest_amp.data_files.releases import installed_torch, release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.known.accepted import explains, matching
from pytest_amp.known.expected import FILE
from pytest_amp.known.rows import Known
from pytest_amp.record import FIXED, Baseline, Observation, keys_of, keys_of_test
from pytest_amp.run.identity import FAULT, INFO, NOTES, OBSERVATIONS, key_of, target_of
from pytest_amp.run.session import Facts, Messages, Selection


def complete_failure(
    item: pytest.Item, call: pytest.CallInfo[None], options: AmpConfig, baseline: Baseline | None
) -> None:
    """Add the command that reruns just this test, unless the check has set one, and known reasons."""
    if call.excinfo is not None and isinstance(call.excinfo.value, AmpFailure):
        call.excinfo.value.rerun_with(rerun_command(item, options))
        from pytest_amp.report.newer import newer_than_known

        newer = newer_than_known(installed_torch())
        if newer is not None:
            from pytest_amp.report.causes import earlier_torch, known_reason

            error = call.excinfo.value
            observed: list[Observation] = item.stash.get(OBSERVATIONS, [])
            earlier = earlier_torch(None if baseline is None else baseline.record)
            reason = known_reason(str(error), observed, earlier, installed_torch())
            if reason is not None:
                error.likely_is(reason)
            error.likely_with(newer)


#: Options that decide whether and how a test runs, besides device and dtype.
RELEVANT = (
    "amp_baseline",
    "amp_speed",
    "amp_allow_missing",
    "amp_strict",
    "amp_floors",
    "amp_tier",
    "amp_tolerance_scale",
    "amp_seed",
)


def rerun_command(item: pytest.Item, options: AmpConfig) -> str:
    """Return the command that reruns just this test on its device and dtype, from the folder of this run."""
    # Not the node id, to which pytest-xdist may add a group.
    names = [node.name for node in item.listchain() if isinstance(node, (pytest.Class, pytest.Item))]
    *arguments, place = _place(item)
    words = ["pytest", *arguments, "::".join([place, *names])]
    target = target_of(item)
    if target is not None:
        words.append(f"--amp-device={target.device.name}")
    if target is not None and target.precision.is_low:
        words.append(f"--amp-dtype={target.precision.name}")
    return shlex.join([*words, *options.typed(RELEVANT)])


def _place(item: pytest.Item) -> list[str]:
    """Return pytest's argument for the test's file; for an installed suite, its module.

    Next to a path outside of the starting folder, pytest does not load that folder's conftest, and so lacks the cases
    of a project.
    """
    module = item.getparent(pytest.Module)
    name = "" if module is None else str(module.obj.__name__)
    if name.startswith("pytest_amp.suites."):
        return ["--pyargs", name]
    return [os.path.relpath(item.path, item.config.invocation_params.dir)]


#: The class that pytest puts before the message of a failure.
_CLASS = re.compile(r"^pytest_amp\.[\w.]+: (?=AmpFailure: )")


def attach(item: pytest.Item, report: pytest.TestReport, selection: Selection, facts: Facts) -> None:
    """Attach the test's identity, and at its end its observations, to the report for the controller."""
    info, target = item.stash.get(INFO, None), target_of(item)
    if info is None or target is None:
        return
    observed = item.stash.get(OBSERVATIONS, []) if report.when == "teardown" else []
    notes = item.stash.get(NOTES, []) if report.when == "teardown" else []
    report.amp = {  # type: ignore[attr-defined]  # pytest keeps attributes that a plugin adds
        "test": vars(info),
        "key": key_of(item, info, target),
        "selected": selection.selected[info.target, info.family],
        "observations": [observation.to_json() for observation in observed],
        "notes": notes,
    }
    if not facts.sent:
        # With the first report: a worker that is ended later has no other opportunity.
        facts.sent = True
        report.amp["provenance"] = facts.provenance
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:  # pytest puts the class before a message that begins with it
        crash.message = _CLASS.sub("", crash.message)
    if report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS(strict)] "):
        reason = report.longrepr.removeprefix("[XPASS(strict)] ")
        remedy = f"end its row in {FILE}" if FAULT in item.stash else "remove the xfail"
        report.longrepr = f"{FIXED}{reason} passes on {info.target}; {remedy}"


def is_fixed(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Return whether a test fails because it is a strict xfail that passes."""
    return report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(FIXED)


def accept_known(
    item: pytest.Item,
    call: pytest.CallInfo[None],
    report: pytest.TestReport,
    known: tuple[Known, ...],
    messages: Messages,
) -> None:
    """Turn a failure that ``known``, the rows of --amp-known, covers into an expected one, and note that it ran."""
    target = target_of(item)
    if not known or target is None or INFO not in item.stash or report.when != "call" or report.skipped:
        return
    # A pattern may have been written for earlier keys.
    keys = [key for observation in item.stash.get(OBSERVATIONS, []) for key in keys_of(observation)]
    keys += keys_of_test(key_of(item, item.stash[INFO], target))
    import torch

    release = release_of(torch.__version__)
    rows = matching(known, keys, release, target.device.type, target.precision.name)
    if report.failed:
        error = call.excinfo.value if call.excinfo is not None else None
        try:
            rows = [row for row in rows if explains(row, error)]
        except ValueError as problem:
            messages.problem(f"--amp-known: {problem}")
            return
    if not rows:
        return
    report.amp["known"] = [row.name for row in rows]
    if report.failed:
        report.outcome = "skipped"
        report.wasxfail = f"known: {rows[0].reason} ({rows[0].report})"
