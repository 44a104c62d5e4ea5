"""Releases of torch for the nightly gate: the previous release, the current one, and the nightly build.

Reads what ``pip index versions torch`` prints (from standard input) and writes the matrix of the job as
``channels=[…]`` to the file that ``GITHUB_OUTPUT`` names: the last patch of the previous minor release, the last
release, and, where ``NIGHTLY_INDEX`` is set, what that index has. ``CHANNELS`` (a comma list) narrows it. ``cpu=[…]``
is the matrix of the job without a GPU: torch without a version, and what ``NIGHTLY_CPU_INDEX`` has where it is set.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

NAMES = ("previous", "stable", "nightly")


def releases(text: str) -> list[tuple[int, ...]]:
    """The releases in pip's answer, oldest first; pre-releases are none."""
    actual = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    if actual is None:
        raise ValueError("pip listed no versions of torch")
    words = [word.strip() for word in actual[1].split(",")]
    return sorted({tuple(map(int, word.split("."))) for word in words if re.fullmatch(r"\d+(\.\d+)+", word)})


def channels(text: str, expected: Mapping[str, str]) -> list[dict[str, str]]:
    """The entries of the matrix."""
    actual = releases(text)
    stable = actual[-1]
    previous = [release for release in actual if release[:2] < stable[:2]]
    if not previous:
        raise ValueError("there is no release before the current one")
    numbers = {"previous": previous[-1], "stable": stable}
    names = [name.strip() for name in (expected.get("CHANNELS") or ",".join(NAMES)).split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown channel {unknown[0]!r}; expected {', '.join(NAMES)}")
    matrix = []
    for name in names:
        if name != "nightly":
            torch = f"torch=={'.'.join(map(str, numbers[name]))}"
            matrix.append({"channel": name, "torch": torch, "index": expected.get("TORCH_INDEX", "")})
        elif expected.get("NIGHTLY_INDEX"):
            matrix.append({"channel": name, "torch": "torch", "index": expected["NIGHTLY_INDEX"]})
        elif expected.get("CHANNELS"):
            raise ValueError("nightly was asked for, and the variable TORCH_NIGHTLY_INDEX names no index")
    return matrix


def without_gpu(expected: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the entries of the matrix of the job on a CPU: whatever release is the newest, and the nightly build."""
    matrix = [{"channel": "stable", "torch": "torch", "index": expected.get("TORCH_CPU_INDEX", "")}]
    if expected.get("NIGHTLY_CPU_INDEX"):
        matrix.append({"channel": "nightly", "torch": "torch", "index": expected["NIGHTLY_CPU_INDEX"]})
    return matrix


def main() -> int:
    """Write the matrices; one line and 1 if there is none."""
    try:
        matrix = channels(sys.stdin.read(), os.environ)
    except ValueError as error:
        sys.stderr.write(f"torch_channels: {error}\n")
        return 1
    lines = f"channels={json.dumps(matrix)}\ncpu={json.dumps(without_gpu(os.environ))}\n"
    sys.stdout.write(lines)
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
