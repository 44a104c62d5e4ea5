"""Fetch the records of the last green run of a workflow, to compare tonight's with: one artifact for each channel.

Reads ``WORKFLOW`` (its file), ``BRANCH``, ``ARTIFACTS`` (a comma list of names) and ``FOLDER`` from the environment;
asks with ``gh``. An artifact that no green run has is not an error (the first night has nothing to compare with): it is
named. One that is there and cannot be fetched is one. Says which were fetched as ``records=[…]`` in the file that
``GITHUB_OUTPUT`` names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

#: How many green runs are looked through: artifacts expire, and a run may have had fewer channels.
RUNS = 20
LIVE = "[.artifacts[] | select(.expired | not) | .name]"


def gh(*arguments: str) -> str:
    """Return the output of gh, which reads its token from the environment. Raises RuntimeError with its error."""
    done = subprocess.run(["gh", *arguments], capture_output=True, text=True, check=False)  # noqa: S607
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"gh {' '.join(arguments[:2])} failed")
    return done.stdout


def green_runs(workflow: str, branch: str) -> dict[str, list[str]]:
    """The artifacts that the last green runs on ``branch`` still have, by the run's id, newest first."""
    query = ("--workflow", workflow, "--branch", branch, "--status", "success", "--limit", str(RUNS))
    runs = json.loads(gh("run", "list", *query, "--json", "databaseId"))
    return {
        str(run["databaseId"]): json.loads(
            gh("api", f"repos/{{owner}}/{{repo}}/actions/runs/{run['databaseId']}/artifacts?per_page=100", "--jq", LIVE)
        )
        for run in runs
    }


def fetched(expected: list[str], runs: dict[str, list[str]], folder: Path) -> list[str]:
    """Download each artifact from the newest run that has it; those that there were."""
    actual = []
    for artifact in expected:
        run = next((run for run, names in runs.items() if artifact in names), None)
        if run is None:
            sys.stdout.write(f"{artifact}: no green run has it yet\n")
            continue
        gh("run", "download", run, "--name", artifact, "--dir", str(folder / artifact))
        sys.stdout.write(f"{artifact}: from run {run}\n")
        actual.append(artifact)
    return actual


def main() -> int:
    """Fetch what there is; 1 if something that is there could not be fetched."""
    try:
        runs = green_runs(os.environ["WORKFLOW"], os.environ["BRANCH"])
        actual = fetched(os.environ["ARTIFACTS"].split(","), runs, Path(os.environ["FOLDER"]))
    except RuntimeError as error:
        sys.stderr.write(f"last_green: {error}\n")
        return 1
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"records={json.dumps(actual)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
