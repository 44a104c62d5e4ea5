"""Command ``pytest-amp init``: write a test file for a model, run it, and report the result."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from pytest_amp.cli.common import NOT_WRITTEN, Commands, write

#: Exit statuses: the test passed, it failed, or the model does not exist.
GREEN, RED, NO_MODEL = 0, 1, 2


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "init",
        help="write a test file for a model, run it, and say what it found",
        description="Writes a test with amp.check for a model, runs it, and prints what it found. The batch of a model "
        "of transformers or timm is made from its configuration; of any other, name a function that makes one, or fill "
        "in the one that is written. Ends with pytest's status.",
    )
    command.add_argument("model", help="package.module:build, a function or a class that makes the model")
    command.add_argument("--batch", help="package.module:function, which makes a batch")
    command.add_argument("--loss", help="package.module:function of the model and the batch")
    command.add_argument("--to", type=Path, help="the test file (default: test_amp_BUILD.py)")
    command.add_argument("--no-run", action="store_true", help="write the file, and do not run it")
    command.add_argument("--force", action="store_true", help="write over a file that exists")
    command.set_defaults(run=_init, parser=command)


def _init(options: argparse.Namespace) -> int:
    from pytest_amp.scaffold import ScaffoldError, write_test

    for name in ("model", "batch", "loss"):
        value = getattr(options, name)
        if value is not None and not re.fullmatch(r"[\w.]+:[\w.]+", value):
            options.parser.error(f"argument {name}: {value!r}; expected package.module:name")
    path = options.to or Path(f"test_amp_{options.model.rpartition(':')[2].replace('.', '_').lower()}.py")
    if path.exists() and not options.force:
        options.parser.error(f"{path} exists; --force writes over it, --to names another file")
    sys.path.insert(0, str(Path.cwd()))
    try:
        text, note = write_test(options.model, options.batch, options.loss)
    except ScaffoldError as error:
        sys.stderr.write(f"pytest-amp: {error}\n")
        return NO_MODEL
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"pytest-amp: {path}: {error.strerror or error}\n")
        return NOT_WRITTEN
    write(f"wrote {path}: {note}\n")
    if options.no_run:
        return GREEN
    return _run(path)


def _run(path: Path) -> int:
    """Run the test as a user would, and return pytest's status."""
    command = [sys.executable, "-m", "pytest", str(path), "-q", "-s"]
    if "pytest_amp" not in _entry_points():
        command[3:3] = ["-p", "pytest_amp.plugin"]
    write(f"$ pytest {path} -s\n")
    sys.stdout.flush()
    return subprocess.run([*command, "--rootdir", str(path.parent.resolve())], check=False).returncode  # noqa: S603


def _entry_points() -> set[str]:
    """Return the modules that pytest loads as installed plugins."""
    from importlib.metadata import entry_points

    return {entry.value.partition(".")[0] for entry in entry_points(group="pytest11")}
