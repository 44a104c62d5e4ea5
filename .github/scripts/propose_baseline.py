"""Put a record into baselines/, and open a pull request that says what differs from the one before.

``python propose_baseline.py RECORD NAME`` in a checkout: writes ``baselines/NAME.json`` on a branch of its own, and has
``gh`` open the pull request, with ``pytest-amp diff`` as its text. Ends with 0 and does nothing where the record says
the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

FIRST = "The first baseline of this name: there is nothing to compare it with.\n"


def call(*command: str, text: str | None = None, accepted: tuple[int, ...] = (0,)) -> str:
    """Return the output of a command. Raises RuntimeError with its last line if it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        raise RuntimeError(f"{command[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout


def propose(record: Path, name: str) -> str:
    """Branch, commit, push, pull request; what was done, in one line."""
    baseline = Path("baselines", f"{name}.json")
    diff = FIRST
    if baseline.exists():
        diff = call(
            sys.executable, "-m", "pytest_amp", "diff", str(baseline), str(record), "--format=md", accepted=(0, 1)
        )
    baseline.parent.mkdir(exist_ok=True)
    shutil.copyfile(record, baseline)
    if not call("git", "status", "--porcelain", "--", str(baseline)):
        return f"{baseline} says the same"
    branch = f"baseline/{name}"
    call("git", "switch", "--force-create", branch)
    call("git", "add", "--", str(baseline))
    author = ("-c", "user.name=github-actions[bot]", "-c", "user.email=github-actions[bot]@users.noreply.github.com")
    call("git", *author, "commit", "--message", f"Baseline {name}")
    call("gh", "auth", "setup-git")
    call("git", "push", "--force", "origin", f"HEAD:refs/heads/{branch}")
    title = f"Baseline {name}"
    if call("gh", "pr", "list", "--head", branch, "--state", "open", "--json", "number").strip() not in ("", "[]"):
        call("gh", "pr", "edit", branch, "--title", title, "--body-file", "-", text=diff)
        return f"updated the pull request of {branch}"
    call("gh", "pr", "create", "--head", branch, "--title", title, "--body-file", "-", text=diff)
    return f"opened a pull request for {branch}"


def main(arguments: list[str]) -> int:
    """One line, and 1 if something failed."""
    record, name = arguments
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        sys.stderr.write(
            f"propose_baseline: {name!r} is not a name; expected small letters, digits, '.', '_' and '-'\n"
        )
        return 2
    try:
        sys.stdout.write(f"{propose(Path(record), name)}\n")
    except RuntimeError as error:
        sys.stderr.write(f"propose_baseline: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
