"""Provenance of a run: the facts that its values may depend on."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

import pytest_amp
from pytest_amp.config import AmpConfig
from pytest_amp.data_files.releases import installed_torch
from pytest_amp.hookspecs import raised_in
from pytest_amp.record import Value, unwritable
from pytest_amp.run.session import Facts, Messages
from pytest_amp.run.targets import Target

#: Provenance that comparisons depend on: the provenance hook may add entries, but not change these.
COMPARED = ("torch", "devices", "cpu_capability", "seed", "tolerance_scale")


def note_devices(facts: Facts, targets: Sequence[Target]) -> None:
    """Note the facts that values of this process may depend on: the build of torch and the devices of ``targets``."""
    import torch

    from pytest_amp.devices import DeviceKind, find_device

    facts.provenance["torch"] = str(torch.__version__)
    facts.provenance["torch_git"] = str(torch.version.git_version)
    facts.provenance["torch_build"] = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "debug": bool(torch.version.debug),
        "compiler": _compiler(torch.__config__.show()),
    }
    facts.provenance["devices"] = {
        target.device.key: dict(target.device.provenance()) for target in targets if target.missing is None
    }
    # A GPU's steps wait for its host, whichever devices were selected.
    facts.provenance["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    if any(target.device.kind is DeviceKind.FAKE for target in targets):
        # Facts that a fake device cannot provide come from CPU kernels.
        facts.provenance["host"] = dict(find_device("cpu").provenance())


def note_families(facts: Facts, folders: Mapping[str, Path]) -> None:
    """Note the revision of each family, by name, from the folder of its package."""
    from pytest_amp.run.revision import revision_of

    if folders:
        facts.provenance["revisions"] = {name: revision_of(folder) for name, folder in sorted(folders.items())}


def _compiler(shown: str) -> str | None:
    """Return the compiler named by ``torch.__config__.show()``, such as ``GCC 13.3``."""
    match = re.search(r"^\s*- ((?:GCC|clang|MSVC|Apple)\b.*)$", shown, re.MULTILINE | re.IGNORECASE)
    return match[1].strip() if match else None


def whole_provenance(facts: Mapping[str, Value], config: pytest.Config, messages: Messages) -> dict[str, Value]:
    """Return the provenance ``facts`` with the additions of the hook pytest_amp_provenance, which is called.

    An error of the hook, or a value that cannot be written to a file, fails the run; the remaining provenance is
    returned.
    """
    hook, result = "pytest_amp_provenance", dict(facts)
    extended = dict(result)
    try:
        config.hook.pytest_amp_provenance(provenance=extended)
    except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
        messages.problem(raised_in(hook, error))
    for name, value in extended.items():
        if name in COMPARED and value != result.get(name):
            messages.problem(f"the hook {hook} changes {name}, on which comparisons rest; expected another name")
        elif problem := unwritable(name, value):
            messages.problem(f"the hook {hook}: {problem}")
        else:
            result[name] = value
    return result


def own_provenance(config: pytest.Config, options: AmpConfig, facts: Facts) -> dict[str, Value]:
    """Return the facts of this process, and those that the processes with tests have noted."""
    process: dict[str, Value] = {
        "plugin": pytest_amp.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "pytest": pytest.__version__,
        "torch": installed_torch(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["pytest", *map(str, config.invocation_params.args)]),
        "seed": options.seed,
        "tolerance_scale": options.tolerance_scale,
        "baseline": str(options.baseline) if options.baseline else None,
    }
    return {**process, **facts.provenance}
