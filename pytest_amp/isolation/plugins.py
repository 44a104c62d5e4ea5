"""Which modules a child process has to import so that torch there is what it is here."""

from __future__ import annotations

import os

import pytest


def plugin_modules(config: pytest.Config) -> list[str]:
    """The modules that the command line or the environment made plugins, in their order.

    What they do to torch here has to happen in a child process, too. pytest's own plugins and installed
    ones, which have other names than their modules, stay here.
    """
    named = [*config.option.plugins, *os.environ.get("PYTEST_PLUGINS", "").split(",")]
    modules = []
    for name in (name.strip() for name in named if not name.startswith("no:")):
        plugin = config.pluginmanager.get_plugin(name)
        own = getattr(plugin, "__name__", None) == name and not name.startswith(("_pytest.", "pytest_amp."))
        if own and name not in modules:
            modules.append(name)
    return modules
