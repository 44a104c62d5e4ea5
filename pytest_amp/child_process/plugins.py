"""Modules that a child process must import so that its torch equals the one here."""

from __future__ import annotations

import os

import pytest


def plugin_modules(config: pytest.Config) -> list[str]:
    """Return the modules that the command line or the environment registered as plugins, in order.

    Their changes to torch here must happen in a child process, too. pytest's own plugins and installed ones, whose
    names differ from their modules', are not included.
    """
    named = [*config.option.plugins, *os.environ.get("PYTEST_PLUGINS", "").split(",")]
    modules = []
    for name in (name.strip() for name in named if not name.startswith("no:")):
        plugin = config.pluginmanager.get_plugin(name)
        is_public = getattr(plugin, "__name__", None) == name and not name.startswith(("_pytest.", "pytest_amp."))
        if is_public and name not in modules:
            modules.append(name)
    return modules
