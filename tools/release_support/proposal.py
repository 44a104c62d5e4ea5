"""Proposal for a release: the changes in the checkout, and the decisions left to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_amp.data_files.releases import release_of
from pytest_amp.fingerprint.data import load
from pytest_amp.known.rows import read_known
from pytest_amp.record import Difference, Observation, Record, difference
from pytest_amp.record.compare import revisions
from pytest_amp.report.cells import without_places
from pytest_amp.report.reasons import change_between
from pytest_amp.rules.spec import load_spec
from tools.release_support import differences, faults, pages, spec_rows
from tools.release_support.notes import documented, read_notes
from tools.release_support.patch import patch as as_patch

SPEC = "pytest_amp/rules/spec.toml"
FINGERPRINTS = "pytest_amp/fingerprint/fingerprints.txt"
#: Steps that require a GPU.
ON_A_GPU = (
    "on a GPU: python -m tools.fingerprints cuda, which adds what a real card gives otherwise",
    "on a GPU: make gate AMP_DEVICE=cuda AMP_DTYPE=bf16, and with AMP_DTYPE=fp16; speed is part of it",
    "on a GPU: make real-models AMP_DEVICE=cuda",
    "on two GPUs: pytest suites/distributed --amp-device=cuda",
)


@dataclass(frozen=True)
class Proposal:
    """Changed files, by path below the checkout, their patch, and lines for people."""

    title: str
    files: dict[str, str]
    patch: str
    people: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Observed:
    """Observations of a release and of the one before it.

    ``fingerprints`` is the file with the release in it, ``log`` the output of its update. ``notes`` are release notes;
    ``python`` is an interpreter with the release, in which torch's own documentation is searched.
    """

    before: Record
    record: Record
    fingerprints: Path
    log: Sequence[str] = ()
    notes: Path | None = None
    python: Path | None = None


def propose(root: Path, observed: Observed) -> Proposal:
    """Return the changes of a release in the data of ``root``.

    Raises ValueError if a rule lacks its row.
    """
    before, record = observed.before, observed.record
    version, last = str(record.provenance["torch"]), load_spec().last
    release, public = ".".join(map(str, release_of(version))), version.partition("+")[0]
    rules, unclear = differences.rule_changes(record)
    compared = difference(before, record)
    changed = differences.changes(compared, [] if observed.notes is None else read_notes(observed.notes))
    spec = spec_rows.edited(pages.read(root, SPEC), rules, before=last, release=release, version=public)
    mended = faults.rows(record.failures, last, read_known(root / faults.FILE))
    files = {
        SPEC: spec,
        FINGERPRINTS: observed.fingerprints.read_text(encoding="utf-8"),
        faults.FILE: faults.with_rows(root, mended),
        differences.CHANGES: differences.with_changes(root, changed.rows),
        pages.MATRIX: pages.matrix(pages.read(root, pages.MATRIX), public),
        pages.CHANGELOG: pages.changelog(pages.read(root, pages.CHANGELOG), release, last),
        pages.FINGERPRINT: pages.fingerprint_page(pages.read(root, pages.FINGERPRINT), load(observed.fingerprints)),
        pages.RULES: pages.rules(spec),
        pages.UPGRADE: pages.upgrade(pages.read(root, pages.UPGRADE), _torch(before), public, changed.counts),
    }
    edited = {name: text for name, text in files.items() if text is not None}
    people = [
        ("Red, and explained by no data", _red(compared)),
        ("Differences without a known reason", list(changed.unexplained)),
        ("Rules that no row can say", unclear),
        ("Guards", [*(line for line in observed.log if line.startswith("guard ")), *_gaps(compared)]),
        ("Mended on a CPU or a fake device: is it on CUDA, too?", [str(row["key"]) for row in mended]),
        ("Needs hardware", list(ON_A_GPU)),
        ("What torch's documentation says of the release", _documented(observed.python, release)),
    ]
    questions = [(title, lines) for title, lines in people if lines]
    return Proposal(f"torch {public}", edited, as_patch(root, edited), questions)


def human_list(compared: Proposal) -> str:
    """Return the list for people as a page of Markdown."""
    lines = [f"# {compared.title}: what people have to decide"]
    for title, entries in compared.people:
        lines += ["", f"## {title}", "", *(f"- {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def _torch(record: Record) -> str:
    return str(record.provenance["torch"]).partition("+")[0]


def _red(compared: Difference) -> list[str]:
    """Return a line for each cause of failures, with its tests, except those whose fact the data explains."""
    old, new = (str(record.provenance["torch"]) for record in (compared.old, compared.new))
    facts: dict[tuple[str, ...], list[Observation]] = {}
    for observation in compared.new.observations:
        facts.setdefault((observation.family, *observation.target, observation.test), []).append(observation)
    groups: dict[tuple[str, str], list[str]] = {}
    whole: dict[tuple[str, str], str] = {}
    for failure in compared.new.failures:
        of_test = facts.get((failure.family, *failure.target, failure.test), ())
        named = [fault for fault in of_test if fault.name in failure.why]
        if failure.is_fixed or any(change_between(fault, old, new) for fault in named):
            continue
        cause = (failure.family, without_places(failure.why))
        whole.setdefault(cause, failure.why)
        groups.setdefault(cause, []).append(failure.key)
    return [f"{whole[cause]}: {', '.join(keys)}" for cause, keys in groups.items()]


def _gaps(compared: Difference) -> Iterable[str]:
    """Yield the gaps of the release: checks that the record before ran, and this one did not."""
    revised = revisions(compared.old.provenance, compared.new.provenance)
    if revised:
        yield f"the two records are of different tests ({', '.join(sorted(revised))}): record the earlier release again"
    for gap, lines in compared.gaps.items():
        yield from (f"{gap.value}: {line}" for line in lines)


def _documented(python: Path | None, release: str) -> list[str]:
    if python is None:
        return []
    packages = sorted(python.parent.parent.glob("lib/python3.*/site-packages/torch"))
    return [line for package in packages for line in documented(package, release)]
