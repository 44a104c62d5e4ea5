"""Tests that a hook removes after collection, and runs that end with status 0 before the verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_amp.config import OPTIONS, AmpConfig
from pytest_amp.run.session import Collected, Messages, Selection
from pytest_amp.run.verdict import RUNS_NOTHING

#: Options of pytest that select among collected tests: tests that they deselect were not requested.
_SELECTING = ("keyword", "markexpr", "lf", "stepwise", "deselect")


def note_removed(session: pytest.Session, collected: Collected, selection: Selection, messages: Messages) -> None:
    """Note which amp tests a conftest.py or a plugin removed; the run fails if it removed all tests of an argument."""
    option = session.config.option
    there = {*map(id, session.items), *map(id, collected.dropped)}
    if any(getattr(option, name, None) for name in _SELECTING):
        there |= {*map(id, collected.deselected)}
    removed = [item for item in collected.items if id(item) not in there]
    collected.items, collected.deselected, collected.dropped = [], [], []
    if not removed:
        return
    selected = [item for item in session.items if item.nodeid in collected.selected]
    total = len(removed) + len(selected)
    selection.deselected[f"removed by a conftest.py or a plugin, which left {len(selected)} of {total}"] += len(removed)
    for argument in session.config.args:
        named = [item for item in removed if _names(argument, item, session.config)]
        left = [item for item in selected if _names(argument, item, session.config)]
        if named and not left:
            messages.problem(
                f"{argument} was asked for: selected 0 of {len(named)}, a conftest.py or a plugin removed them after "
                "they were collected"
            )


def _names(argument: str, item: pytest.Item, config: pytest.Config) -> bool:
    """Return whether ``argument`` names the file, the class or the test of ``item``, or the package around it."""
    file, _, rest = argument.partition("::")
    path = (config.invocation_params.dir / file).resolve()
    if path.is_dir():
        return (path / "__init__.py").is_file() and path in item.path.resolve().parents
    name = item.nodeid.partition("::")[2]
    inside = not rest or name == rest or name.startswith((f"{rest}[", f"{rest}::"))
    return path == item.path.resolve() and inside


def refuse_exit(ended: SystemExit, config: pytest.Config) -> None:
    """Raise UsageError for a conftest.py that ends the process with status 0, in a run that uses this plugin."""
    namespace = config.known_args_namespace
    is_requested = any(getattr(namespace, option.ini, None) is not None for option in OPTIONS)
    written = getattr(config, "inicfg", ())
    if ended.code in (None, 0) and (is_requested or any(option.ini in written for option in OPTIONS)):
        trace = ended.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "a conftest.py" if trace is None else str(Path(trace.tb_frame.f_code.co_filename))
        raise pytest.UsageError(f"{where}: ends pytest with status 0, and no check ran; expected pytest.exit") from None


def expect_judged(config: pytest.Config, options: AmpConfig | None, status: int | None) -> int:
    """Return the status of a run that ended with 0: 1 if it has no verdict, or ``status``, that of the verdict.

    ``options`` are None if the run ended before they were read.
    """
    if any(getattr(config.option, name, False) for name in (*RUNS_NOTHING, "markers")):
        return 0
    if options is not None and (status or not options.explicit):
        return status or 0
    is_requested = options is not None or any(
        getattr(config.option, option.ini, None) is not None for option in OPTIONS
    )
    if is_requested and status is None:
        sys.stderr.write("ERROR: the run was ended with status 0 before a check ran (pytest.exit, or a hook)\n")
        return 1
    return 0
