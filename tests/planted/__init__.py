"""Planted defects, as a plugin of pytest: ``python -m pytest -p tests.planted --plant NAME suites``.

The defect is planted when pytest loads this plugin: before installed plugins, and before any test. Child processes that
import the modules of ``-p`` (ranks, isolated examinations, pytest-xdist's workers) find its name in the environment and
plant it when they import this package, before they import torch.
"""

from __future__ import annotations

import argparse
import difflib
import os
from typing import TYPE_CHECKING, Any

from tests.planted.table import find, names

if TYPE_CHECKING:
    import pytest

#: The environment variable in which child processes find what to plant.
PLANT = "PLANTED_DEFECT"

#: What planting returned, by the defect's name: a plugin of pytest, or None.
_planted: dict[str, Any] = {}


def plant(name: str) -> None:
    """Plant a defect in this process, once, and in the child processes that it starts. Raises KeyError."""
    if name not in _planted:
        os.environ[PLANT] = name
        _planted[name] = find(name).plant()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add ``--plant``, and plant: pytest calls this hook as soon as it has loaded the plugin."""
    parser.addoption("--plant", metavar="NAME", help="plant a defect of tests/planted")
    config: Any = pluginmanager.get_plugin("pytestconfig")
    arguments = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    arguments.add_argument("--plant")
    name = arguments.parse_known_args([str(word) for word in config.invocation_params.args])[0].plant
    if name is not None:
        if name not in names():
            near = difflib.get_close_matches(name, names(), n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise _refused(f"--plant: no planted defect is named {name}{hint}")
        plant(name)
    for plugin in _planted.values():
        if plugin is not None:
            pluginmanager.register(plugin)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a run in which nothing is planted. Raises pytest.UsageError."""
    if not _planted and not config.getoption("help"):
        raise _refused("-p tests.planted: name a defect on the command line, with --plant NAME")


def _refused(message: str) -> Exception:
    import pytest  # child processes, which import this package, have no use for it

    return pytest.UsageError(message)


if PLANT in os.environ:
    plant(os.environ[PLANT])
