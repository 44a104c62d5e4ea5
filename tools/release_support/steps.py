"""Steps of the support of a release, in order: each writes into the workplace, and reports its result in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_amp.data_files.releases import release_of
from pytest_amp.record import Record, RecordError, read_record
from pytest_amp.report.newer import last_known
from tools.release_support.environment import environment_of, expect_version, install, pytest_of, version_of
from tools.release_support.fingerprints import with_record
from tools.release_support.proposal import Observed, Proposal, human_list, propose
from tools.release_support.workplace import StepFailed, Workplace

#: Targets that need no hardware, with the long tier: the family kernels belongs to it on a CPU.
DEVICES = "cpu,fake:cuda,fake:xpu,fake:mps,fake:mtia"
TARGETS = (f"--amp-device={DEVICES}", "--amp-dtype=bf16,fp16", "--amp-tier=all")
PATCH, LIST, FINGERPRINTS_LOG = "release.patch", "human.md", "fingerprints.log"


@dataclass(frozen=True)
class Options:
    """Options of the command.

    ``python`` and ``python_before`` are interpreters with the releases; ``record`` and ``record_before`` existing
    records; ``notes`` a file of release notes; ``keep_lost`` keeps the known fingerprints that cannot be observed.
    """

    python: Path | None = None
    python_before: Path | None = None
    record: Path | None = None
    record_before: Path | None = None
    notes: Path | None = None
    keep_lost: bool = False
    workers: int = 2
    tests: Sequence[str] = ("suites",)


def environment(place: Workplace, options: Options) -> str:
    """Install the release, or examine the interpreter that has it."""
    python = options.python or install(place, "venv", place.requirement)
    version = version_of(python)
    expect_version(version, place.requirement, last_known())
    place.path("python").write_text(str(python.absolute()), encoding="utf-8")
    return f"torch {version} in {python}"


def record(place: Workplace, options: Options) -> str:
    """Run the suites on the release, on the CPU and on fake devices; a red test ends no step."""
    return _record(place, options, "record.json.gz", options.record, _python(place))


def record_before(place: Workplace, options: Options) -> str:
    """Run the suites on the last release that the data knows, which is installed for it."""
    python = options.python_before
    if python is None and options.record_before is None:
        python = install(place, "venv-before", f"torch=={last_known()}.*")
    summary = _record(place, options, "before.json.gz", options.record_before, python)
    record = _read(place.path("before.json.gz"))
    if release_of(str(record.provenance["torch"])) != release_of(last_known()):
        version = record.provenance["torch"]
        raise StepFailed(f"the record before is of torch {version}, and the data ends with {last_known()}")
    return summary


def fingerprints(place: Workplace, _options: Options) -> str:
    """Put the fingerprints of the record into a copy of the file, without losing a guard."""
    source = place.root / "pytest_amp/fingerprint/fingerprints.txt"
    try:
        text, lines = with_record(source, _read(place.path("record.json.gz")))
    except ValueError as error:
        raise StepFailed(str(error)) from None
    place.path("fingerprints.txt").write_text(text, encoding="utf-8")
    place.path(FINGERPRINTS_LOG).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"{len(lines)} differences, in {place.path(FINGERPRINTS_LOG)}"


def guards(place: Workplace, options: Options) -> str:
    """Refuse a release on which a known fact cannot be observed, unless the known facts are to be kept."""
    retained = [line for line in _fingerprint_lines(place) if line.startswith("guard kept: ")]
    if retained and not options.keep_lost:
        more = f", and {len(retained) - 1} more in {place.path(FINGERPRINTS_LOG)}" if len(retained) > 1 else ""
        lost = retained[0].replace("guard kept", "guard lost")
        raise StepFailed(f"{lost}{more}; --keep-lost keeps what was known of each")
    return f"{len(retained)} kept as they were known" if retained else "none lost"


def patch(place: Workplace, options: Options) -> str:
    """Write the patch and the list for people; nothing of the checkout changes."""
    result = _proposal(place, options)
    place.path(PATCH).write_text(result.patch, encoding="utf-8")
    place.path(LIST).write_text(human_list(result), encoding="utf-8")
    people, files = sum(len(lines) for _, lines in result.people), result.patch.count("diff --git")
    return f"{files} files in {place.path(PATCH)}; {people} lines for people in {place.path(LIST)}"


def verify(place: Workplace, options: Options) -> str:
    """Run the red tests, the rules and the fingerprints again, on a copy of the checkout that has the patch.

    Raises StepFailed with the number of tests that are still red.
    """
    tree = place.path("tree")
    _copy(place.root, tree)
    if place.path(PATCH).read_text(encoding="utf-8"):
        # The folder may be inside the checkout, whose repository must not be detected from it.
        outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(place.folder)}
        place.call(["git", "apply", str(place.path(PATCH))], log="apply.log", cwd=tree, environment=outside)
    tests = _to_verify(place)
    command = [*pytest_of(_python(place), tree), *tests, *TARGETS, "-n", str(options.workers), "-q", "-rf"]
    status = place.call(command, log="verify.log", accepted=(0, 1), cwd=tree, environment=environment_of(tree))
    last = place.path("verify.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
    if status:
        raise StepFailed(f"{last.strip('= ')}: {place.path('verify.log')} has each; mend them, and run this again")
    return last.strip("= ")


#: By name, in the order of execution; those of ALWAYS run every time.
STEPS = {
    "environment": environment,
    "record": record,
    "record-before": record_before,
    "fingerprints": fingerprints,
    "guards": guards,
    "patch": patch,
    "verify": verify,
}
ALWAYS = ("guards", "patch", "verify")


def _python(place: Workplace) -> Path:
    return Path(place.path("python").read_text(encoding="utf-8"))


def _fingerprint_lines(place: Workplace) -> list[str]:
    """Return the lines that the update of the fingerprints printed."""
    return place.path(FINGERPRINTS_LOG).read_text(encoding="utf-8").splitlines()


def _record(place: Workplace, options: Options, name: str, existing: Path | None, python: Path | None) -> str:
    path = place.path(name)
    if existing is not None:
        shutil.copyfile(existing, path)
        record = _read(path)
        return f"torch {record.provenance['torch']}, {len(record.observations)} observations of {existing}"
    assert python is not None
    path.unlink(missing_ok=True)
    command = [*pytest_of(python, place.root), *options.tests, *TARGETS, "-n", str(options.workers), "-q"]
    log = f"{name.partition('.')[0]}.log"
    place.call(
        [*command, f"--amp-record={path}", f"--junitxml={place.path(log)}.xml"],
        log=log,
        accepted=(0, 1),
        environment=environment_of(place.root),
    )
    record = _read(path)
    fixed = sum(failure.is_fixed for failure in record.failures)
    red = f"{len(record.failures) - fixed} red, {fixed} fixed upstream"
    return f"torch {record.provenance['torch']}, {len(record.observations)} observations, {red}"


def _read(path: Path) -> Record:
    try:
        return read_record(path)
    except RecordError as error:
        raise StepFailed(str(error)) from None


def _proposal(place: Workplace, options: Options) -> Proposal:
    before, record = (_read(place.path(name)) for name in ("before.json.gz", "record.json.gz"))
    log = _fingerprint_lines(place)
    try:
        observed = Observed(before, record, place.path("fingerprints.txt"), log, options.notes, _python(place))
        return propose(place.root, observed)
    except (ValueError, OSError) as error:
        raise StepFailed(str(error)) from None


def _to_verify(place: Workplace) -> list[str]:
    """Return the files of red tests, and the families that depend on data."""
    red = _read(place.path("record.json.gz")).failures
    files = {f"suites/{failure.family}/{failure.test.partition('::')[0]}.py" for failure in red}
    return sorted({"suites/rules", "suites/fingerprint", *(file for file in files if (place.root / file).is_file())})


def _copy(root: Path, tree: Path) -> None:
    """Copy the checkout, with uncommitted files and without those that git ignores."""
    if tree.exists():
        shutil.rmtree(tree)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        if (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, tree / name)
