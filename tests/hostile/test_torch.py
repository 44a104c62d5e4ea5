"""No torch, a torch that cannot be imported, and one without numpy: one line each, and only where it matters."""

from __future__ import annotations

import os

import pytest

from tests.project import Project, red, refused

PLAIN = "def test_plain():\n    assert True\n"
AMP = "def test_it(amp):\n    amp.observe('x', 1, kind='count')\n"
#: Modules placed before all installed packages, with the error that `import torch` raises.
BROKEN = {
    "none": "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')",
    "driver": "raise OSError('libcudart.so.13: cannot open shared object file: No such file or directory')",
    "half": "from torch._C import nothing_of_this_name",
    "syntax": "def broken(:\n    pass",
}
WITHOUT_NUMPY = """
from importlib.machinery import PathFinder

class Blocked:
    real = PathFinder.find_spec

    def __call__(self, name, path=None, target=None):
        return None if name.split(".")[0] == "numpy" else self.real(name, path, target)


PathFinder.find_spec = Blocked()  # an instance: pytest takes it into a class, where a function would become a method
"""


def _in_front(project: Project, monkeypatch: pytest.MonkeyPatch, **sources: str) -> None:
    for name, text in sources.items():
        project.file(f"front/{name}", text)
    path = [str(project.path / "front"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


@pytest.mark.parametrize(("kind", "workers"), [*((kind, "0") for kind in BROKEN), ("driver", "1")])
def test_torch_that_cannot_be_imported_is_reported_in_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, kind: str, workers: str
) -> None:
    _in_front(project, monkeypatch, **{"torch/__init__.py": BROKEN[kind]})
    project.write(test_plain=PLAIN)
    project.fresh("-n", workers).assert_outcomes(passed=1)
    project.write(test_it=AMP)
    result = project.fresh("-n", workers, "--amp-device=cpu")
    text = f"{result.stdout.str()}\n{result.stderr.str()}"
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert "torch cannot be imported" in line
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text


def test_torch_that_ends_the_process_is_red(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a process cannot be caught: the controller survives, and is red."""
    _in_front(project, monkeypatch, **{"torch/__init__.py": "import os\nos._exit(7)"})
    project.write(test_it=AMP)
    assert project.fresh("-n", "1", "--amp-device=cpu").ret not in (0, 5)


def test_checks_pass_without_numpy(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_front(project, monkeypatch, **{"sitecustomize.py": WITHOUT_NUMPY})
    project.write(
        test_it="""
import sys

import torch


def test_it(amp):
    case = amp.case(lambda: torch.nn.Linear(4, 4), lambda: torch.randn(2, 4), lambda m, b: m(b).float().square().mean())
    amp.check_gradients(case)
    amp.check_dtypes(case, {"": amp.dtype})
    assert "numpy" not in sys.modules
"""
    )
    result = project.fresh("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json")
    result.assert_outcomes(passed=1)
    assert (result.ret, red(result)) == (0, [])


def test_wrong_option_is_reported_before_a_missing_torch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_front(project, monkeypatch, **{"torch/__init__.py": BROKEN["none"]})
    project.write(test_it=AMP)
    assert "'nope'" in refused(project.fresh("--amp-device=nope"))
