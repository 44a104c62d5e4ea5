"""Fetch the records of the last green run of a workflow, to compare tonight's with: one artifact for each channel.

Reads ``WORKFLOW`` (its file), ``ARTIFACTS`` (a comma list of names) and ``FOLDER`` from the environment, and asks with
``gh``. An artifact that no green run has is no error (the first night has nothing to compare with): it is named,
and an empty folder is left for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

#: How many green runs are looked through: artifacts expire, and a run may have had fewer channels.
RUNS = 20


def gh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call gh, which finds its token in the environment."""
    return subprocess.run(["gh", *arguments], capture_output=True, text=True, check=False)  # noqa: S607


def green_runs(workflow: str) -> list[str]:
    """The ids of the last green runs on the default branch, newest first. Raises RuntimeError if gh fails."""
    query = ("--workflow", workflow, "--status", "success", "--limit", str(RUNS), "--json", "databaseId")
    done = gh("run", "list", *query)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or "gh run list failed")
    return [str(run["databaseId"]) for run in json.loads(done.stdout)]


def main() -> int:
    """Download each artifact from the newest run that has it."""
    folder = Path(os.environ["FOLDER"])
    try:
        runs = green_runs(os.environ["WORKFLOW"])
    except RuntimeError as error:
        sys.stderr.write(f"last_green: {error}\n")
        return 1
    for artifact in os.environ["ARTIFACTS"].split(","):
        target = folder / artifact
        target.mkdir(parents=True, exist_ok=True)
        for run in runs:
            if not gh("run", "download", run, "--name", artifact, "--dir", str(target)).returncode:
                sys.stdout.write(f"{artifact}: from run {run}\n")
                break
        else:
            sys.stdout.write(f"{artifact}: no green run has it yet\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
