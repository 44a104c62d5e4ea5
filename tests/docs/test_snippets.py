"""Every snippet and command of the tutorial and the how-to pages, run in turn in a folder of the page's own.

A block of Python or TOML that begins with ``# name.py`` is that file; a block of a console is run line by line. A
command has a comment ``# fails: STATUS`` if it should not end with 0. Commands that install, or need a network or an
accelerator, are checked word by word instead: their options and targets exist.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_pytest
from tests.project import INSTALLED, ROOT

PAGES = sorted([*(ROOT / "docs" / "tutorial").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Seconds that a command may take.
TIMEOUT = 300.0
#: Commands that are not run: they install, build environments from a registry, or time a GPU.
READ = ("pip install", "pytest-amp bisect", "pytest-amp calibrate --to", "make ")


def _blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def _command(line: str) -> tuple[list[str], int]:
    text, _, comment = line.removeprefix("$ ").partition("   # ")
    status = re.search(r"fails: (\d)", comment)
    return shlex.split(text), int(status[1]) if status else 0


def _run(words: list[str], folder: Path, environment: dict[str, str], output: Path) -> int | None:
    """Run a command in ``folder``, and return its exit status; what it prints goes to ``output``."""
    program, *arguments = words
    if program == "pytest":
        typed = _typed(arguments)
        return run_pytest(typed, folder, output, timeout=TIMEOUT, environment=environment)
    assert program == "pytest-amp", words
    command = [sys.executable, "-m", "pytest_amp", *arguments]
    with output.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=file, stderr=file, timeout=TIMEOUT, check=False
        )
    return done.returncode


def _typed(arguments: list[str]) -> list[str]:
    """Return arguments of pytest as they are in this checkout: suites as a folder, the plugin loaded by name."""
    loaded = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
    for number, word in enumerate(arguments):
        if word.startswith("pytest_amp.suites"):
            arguments[number] = str(ROOT / "suites" / "/".join(word.split(".")[2:]))
    rooted = [f"--rootdir={ROOT}"] if "--pyargs" in arguments else ["--rootdir=."]
    retained = [word for word in arguments if word != "--pyargs"]
    return [*loaded, "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *rooted, *retained]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    environment |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    folder = tmp_path / "project"
    folder.mkdir()
    ran = 0
    for language, text in _blocks(page):
        name = re.match(r"# ([\w/]+\.(?:py|toml))\n", text)
        assert name is not None or language != "python", f"{page.name}: which file is this?\n{text}"
        if name is not None and language in ("python", "toml"):
            (folder / name[1]).write_text(text, encoding="utf-8")
        if language != "console":
            continue
        for line in text.splitlines():
            assert line.startswith("$ "), line
            if line.removeprefix("$ ").startswith(READ):
                continue
            words, status = _command(line)
            output = tmp_path / f"output-{ran}"
            assert _run(words, folder, environment, output) == status, f"{line}\n{output.read_text()[-5000:]}"
            ran += 1
    assert ran or page.stem in ("gate-pull-requests", "nightly-gate", "find-the-release", "support-a-release")


def test_workflows_in_the_pages_name_existing_inputs() -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is in the dependency group test")
    action = yaml.safe_load((ROOT / ".github/actions/amp-gate/action.yml").read_text(encoding="utf-8"))
    workflow = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text(encoding="utf-8"))
    inputs = {"amp-gate": set(action["inputs"]), "gpu.yml": set(workflow[True]["workflow_call"]["inputs"])}
    count = 0

    def walk(node: Any) -> None:
        nonlocal count
        for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(value)
        if isinstance(node, dict) and "/pytest-amp/" in str(node.get("uses", "")):
            name = node["uses"].partition("@")[0].rpartition("/")[2]
            assert set(node["with"]) <= inputs[name], node
            count += 1

    for page in PAGES:
        for language, text in _blocks(page):
            if language == "yaml":
                walk(yaml.safe_load(text))
    assert count >= 3


def test_arguments_of_bisect_in_the_pages_exist() -> None:
    from pytest_amp.cli import _parser

    text = (ROOT / "docs" / "how-to" / "find-the-release.md").read_text(encoding="utf-8")
    lines = re.findall(r"(?:^\$ |`)pytest-amp (bisect [^`\n]+)", text, re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        assert _parser().parse_args(shlex.split(line)).old == "2.11.0"
