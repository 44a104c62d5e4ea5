"""Table of planted defects: functions that each break torch, with the test that must fail.

A theme is a module of this folder, and defines the defects of one subject. ``all_defects`` imports every theme,
``find`` only the theme of the requested defect. This module does not import torch.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Environment variable with the device type whose autocast most defects break; the default is the CPU.
VARIABLE = "PLANTED_ON"

_FOLDER = Path(__file__).parent
#: Modules of this folder that define no defect.
_HELPERS = {"__init__", "changes", "kernels", "table"}
#: Families whose tests are in the long tier on a CPU (``long_on`` of their declarations), with the option that runs it.
LONG_FAMILIES = {"kernels": "--amp-tier=all"}
#: Start of a test's parameter id: the device, with a dash in place of the colon, and the dtype.
_TARGET = re.compile(r"\[((?:fake-)?[a-z]+)-(bf16|fp16)")
#: The name of a defect in the source of its theme.
_NAME = re.compile(r"^@defect\(.*\n(?:[ )].*\n)*def (\w+)\(", re.MULTILINE)

_defects: dict[str, Defect] = {}


@dataclass(frozen=True)
class Defect:
    """A row of the table.

    ``caught_by`` is the id of the test that must fail, relative to ``suites/`` unless it begins with ``tests/``. An id
    without its closing bracket matches every test whose id starts with it. ``options`` are additional arguments of
    pytest, including the tier that the family needs. ``caught_on_cuda_by`` is the test that fails on CUDA, if it is a
    different one, and ``not_on_cuda`` the reason why the defect cannot occur on CUDA. ``since`` is the first release of
    torch on which the test can fail for this defect: an earlier one has the fault itself, or lacks what is broken.
    """

    name: str
    breaks: str
    caught_by: str
    plant: Callable[[], object]
    options: tuple[str, ...] = ()
    caught_on_cuda_by: str = ""
    not_on_cuda: str = ""
    since: str = ""

    @property
    def test(self) -> str:
        """The test's id, or the prefix of its parametrized ids, relative to the root."""
        return self.caught_by if self.caught_by.startswith("tests/") else f"suites/{self.caught_by}"

    @property
    def family(self) -> str:
        """The folder of the suite whose test must fail, such as ``scaler``."""
        return self.caught_by.partition("/")[0]

    @property
    def device(self) -> str:
        """The device of the test, in the form of ``--amp-device``."""
        target = _TARGET.search(self.caught_by)
        return target[1].replace("fake-", "fake:") if target else "cpu"

    @property
    def dtype(self) -> str:
        """The dtype of the test, in the form of ``--amp-dtype``."""
        target = _TARGET.search(self.caught_by)
        return target[2] if target else "bf16"

    def test_on(self, device: str) -> str | None:
        """Return the test's id on ``device``, relative to the root; None if it has none there (see ``unfit``)."""
        if self.unfit(device) is not None:
            return None
        if device == "cuda" and self.caught_on_cuda_by:
            return f"suites/{self.caught_on_cuda_by}"
        return self.test.replace("[cpu-", f"[{device}-")

    def unfit(self, device: str) -> str | None:
        """Return why the defect has no test on ``device``; None if it has one.

        The test of a CPU runs on every device. That of any other device, fake or real, runs on that device alone.
        """
        if device == "cuda" and self.not_on_cuda:
            return self.not_on_cuda
        if (device == "cuda" and self.caught_on_cuda_by) or self.device in ("cpu", device):
            return None
        return f"its test runs on {self.device}"

    @property
    def is_recorded(self) -> bool:
        """True if a test of the suites must fail: only their results are recorded."""
        return self.test.startswith("suites")

    def is_named_by(self, key: str) -> bool:
        """Return True if a record key is that of the test that must fail for this defect."""
        test, _, parameters = self.test.partition("::")[2].partition("[")
        after_target = re.sub(r"^(fake-)?[a-z]+-(bf16|fp16|fp32|tf32)-?", "", parameters.removesuffix("]"))
        name = key.split("/", 3)[3]
        return f"::{test}" in name and name.partition("[")[2].startswith(after_target)


def defect(
    breaks: str,
    *,
    caught_by: str,
    options: tuple[str, ...] = (),
    caught_on_cuda_by: str = "",
    not_on_cuda: str = "",
    since: str = "",
    replaces: str = "",
    overrides: str = "",
) -> Callable[[Callable[..., object]], Callable[[], object]]:
    """Add a function to the table, under its own name; calling it plants the defect. See ``Defect``.

    With ``replaces``, the path of an attribute such as ``torch.amp.GradScaler.step``, the function is the defect: it is
    called in place of that attribute, which is its first argument. With ``overrides``, an operator such as
    ``softmax.int``, it is the operator's autocast kernel on every device. With neither, it plants the defect, and may
    return an object, which becomes a plugin of pytest.
    """

    def add(function: Callable[..., object]) -> Callable[[], object]:
        plant = function
        if replaces:
            plant = _replacing(replaces, function)
        if overrides:
            plant = _overriding(overrides, function)
        name = function.__name__
        if name in _defects:
            raise ValueError(f"two planted defects are named {name}")
        tier = LONG_FAMILIES.get(caught_by.partition("/")[0])
        needed = options if tier is None else (*options, tier)
        _defects[name] = Defect(name, breaks, caught_by, plant, needed, caught_on_cuda_by, not_on_cuda, since)
        return plant

    return add


def themes() -> list[str]:
    """Return the names of the modules that define defects."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _HELPERS)


def all_defects() -> list[Defect]:
    """Return every defect, ordered by theme and by position in the file."""
    for theme in themes():
        importlib.import_module(f"{__package__}.{theme}")
    order = {theme: number for number, theme in enumerate(themes())}
    return sorted(_defects.values(), key=lambda row: order[row.plant.__module__.rpartition(".")[2]])


def first_of_families(defects: Iterable[Defect]) -> set[str]:
    """Return the names of the first defect of each family, in the order of the table."""
    first: dict[str, str] = {}
    for row in defects:
        first.setdefault(row.family, row.name)
    return set(first.values())


def names() -> dict[str, str]:
    """Return the theme of each defect by name, read from the sources: nothing is imported."""
    sources = {theme: (_FOLDER / f"{theme}.py").read_text(encoding="utf-8") for theme in themes()}
    return {name: theme for theme, source in sources.items() for name in _NAME.findall(source)}


def find(name: str) -> Defect:
    """Return the defect of this name, importing its theme alone. Raises KeyError for a name that no theme defines."""
    importlib.import_module(f"{__package__}.{names()[name]}")
    return _defects[name]


def _replacing(path: str, function: Callable[..., object]) -> Callable[[], object]:
    """Return the function that plants ``function`` in place of the attribute at ``path``."""

    @functools.wraps(function)
    def plant() -> None:
        def replacement(*args: Any, **kwargs: Any) -> object:
            return function(original, *args, **kwargs)

        owner, _, name = path.rpartition(".")
        original = swap(owner, name, replacement)

    return plant


def _overriding(operator: str, function: Callable[..., object]) -> Callable[[], object]:
    """Return the function that plants ``function`` as the autocast kernel of ``operator``."""

    @functools.wraps(function)
    def plant() -> None:
        from tests.planted.kernels import override  # imports torch

        override(operator, function)

    return plant


def swap(owner: Any, name: str, replacement: Any) -> Any:
    """Set an attribute of a module, class or object, or of what a path names, and return its former value."""
    if isinstance(owner, str):
        owner = pkgutil.resolve_name(owner)
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return original
