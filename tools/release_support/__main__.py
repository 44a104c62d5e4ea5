"""``make release-support TORCH=torch==2.15.0``: prepare the support of a release, step by step.

A finished step is not repeated: an interrupted run resumes. A step that fails reports it in one line, and ends the
command with 1. The checkout does not change, unless ``--apply`` asks for it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.release_support.steps import ALWAYS, LIST, PATCH, STEPS, Options
from tools.release_support.workplace import ROOT, StepFailed, Workplace, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the remaining steps; return 0 if the patch makes the release green, 1 if a step failed, 2 for bad options."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if not re.fullmatch(r"torch(==[0-9][0-9A-Za-z.+]*)?", parsed.requirement):
        parser.error(f"{parsed.requirement!r} is not a release of torch; expected one such as torch==2.15.0")
    folder = parsed.folder or ROOT / "build" / parsed.requirement.replace("==", "-")
    place = Workplace(ROOT, folder.absolute(), parsed.requirement)
    folder.mkdir(parents=True, exist_ok=True)
    names = ("python", "python_before", "record", "record_before", "notes", "keep_lost", "workers")
    options = Options(**{name: getattr(parsed, name) for name in names})
    try:
        _run(place, options, parsed.again)
    except StepFailed as failed:
        say(f"release-support: {failed}")
        return 1
    if parsed.apply:
        command = ["git", "apply", str(place.path(PATCH))]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            say(f"release-support: {place.path(PATCH)} does not apply")
            return 1
    say(f"{'applied' if parsed.apply else 'review'} {place.path(PATCH)}; read {place.path(LIST)}")
    return 0


def _run(place: Workplace, options: Options, again: str | None) -> None:
    """Run each remaining step. Raises StepFailed naming the step."""
    done = place.done()
    begins = list(STEPS).index(again) if again else len(STEPS)
    for number, (name, step) in enumerate(STEPS.items()):
        if name in done and number < begins and name not in ALWAYS:
            say(f"{name}: done before: {done[name]}")
            continue
        started = time.monotonic()
        try:
            summary = step(place, options)
        except StepFailed as failed:
            raise StepFailed(f"{name}: {failed}") from None
        done[name] = summary
        place.finish(done)
        say(f"{name}: {summary} ({time.monotonic() - started:.0f} s)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.release_support", description=__doc__.partition("\n")[2])
    parser.add_argument("requirement", help="the release, as torch==2.15.0")
    parser.add_argument("--folder", type=Path, help="default: build/ and the release, as build/torch-2.15.0")
    parser.add_argument("--python", type=Path, help="an interpreter that has the release; without it one is made")
    parser.add_argument("--python-before", type=Path, help="one that has the last release that the data knows")
    parser.add_argument("--record", type=Path, help="a record of these suites on the release; nothing is run for it")
    parser.add_argument("--record-before", type=Path, help="one on the last release that the data knows")
    parser.add_argument("--notes", type=Path, help="release notes, as Markdown: they give reasons")
    parser.add_argument("--keep-lost", action="store_true", help="keep what is known of what cannot be observed now")
    parser.add_argument("--again", choices=STEPS, help="do this step again, and all after it")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (default: 2)")
    parser.add_argument("--apply", action="store_true", help="apply the patch to the checkout, if all is green")
    return parser


if __name__ == "__main__":
    sys.exit(main())
