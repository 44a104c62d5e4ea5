"""Scripts outside of packages, imported by their path; and programs that stand in for gh and git."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.project import ROOT

SCRIPTS = ROOT / ".github" / "scripts"
ACTION = ROOT / ".github" / "actions" / "amp-gate"

#: Program that writes each call into a file, and answers as the test has set: {first arguments: output}.
STANDING_IN = """#!{python}
import json
import os
import sys

with open(os.environ["CALLS"], "a") as file:
    text = "" if sys.stdin is None or sys.stdin.isatty() or "-" not in sys.argv else sys.stdin.read()
    file.write(json.dumps([{name!r}, *sys.argv[1:], text]) + "\\n")
for start, (output, status) in json.loads({answers!r}).items():
    if " ".join(sys.argv[1:]).startswith(start):
        sys.stdout.write(output)
        sys.exit(status)
"""


def script(name: str, folder: Path = SCRIPTS) -> ModuleType:
    """Return the module in ``folder/name.py``."""
    spec = importlib.util.spec_from_file_location(f"amp_script_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks up the types of its fields there
    spec.loader.exec_module(module)
    return module


def stand_in(folder: Path, name: str, answers: dict[str, tuple[str, int]]) -> None:
    """Put a program called ``name`` into ``folder``."""
    import json

    path = folder / name
    path.write_text(STANDING_IN.format(python=sys.executable, name=name, answers=json.dumps(answers)), encoding="utf-8")
    path.chmod(0o755)
