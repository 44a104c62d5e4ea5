"""Imports point to lower layers, torch is imported on demand, and private names of torch are in one package."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.project import ROOT

PACKAGE = ROOT / "pytest_amp"
#: Parts of the package, from those without dependencies up; a part imports its own layer and those below it.
LAYERS = {
    "foundation": {"account", "data_files", "extras", "failure", "precision", "text", "torch_private"},
    "facts": {
        *("child_process", "config", "devices", "families", "floors", "hookspecs", "known", "markers", "record"),
        *("refusals", "run.state_guard", "run.targets", "run.workers"),
    },
    "checks": {
        *("cases", "compiled", "distributed", "fingerprint", "formats", "memory", "numerics", "rules", "scaler"),
        *("check", "lint", "scaffold", "semantics", "speed", "training"),
    },
}
#: Modules in no layer are the plugin, on top: it may import anything, and none of those below may import it.
TOP = len(LAYERS)
#: Parts without dependencies, or with these only.
ALONE = {
    "precision": {"torch_private"},
    "record": {"data_files"},
    "config": {"floors", "known", "precision", "refusals"},
    "account": set[str](),
    "failure": {"account", "text"},
    "text": set[str](),
}
#: Imports of a higher layer: targets have the type of the cases that a hook adds, and no check.
ABOVE = {("run.targets", "cases")}
#: Parts that a project without mixed precision imports, or that run on the controller: no torch at module level.
WITHOUT_TORCH = {
    *("__init__", "__main__", "account", "bisection", "child_process", "cli", "config", "data_files", "devices"),
    *("extras", "failure", "families", "fixtures", "floors", "hookspecs", "known", "markers", "plugin", "precision"),
    *("record", "refusals", "report", "text"),
    *("run.controller", "run.false_passes", "run.files", "run.freeze", "run.identity", "run.left_out"),
    "run.machine_faults",
    *("run.outcomes", "run.parametrization", "run.provenance", "run.removed", "run.resolution", "run.result"),
    *("run.revision", "run.selection", "run.session", "run.unreceived", "run.tally", "run.targets", "run.termination"),
    *("run.time_limits", "run.verdict", "run.workers"),
}
#: Allowed imports of the suites: the checks and their results, never the parts of the plugin.
FOR_SUITES = (
    LAYERS["checks"]
    | LAYERS["foundation"]
    | {"amp", "child_process", "devices", "families", "record", "run.state_guard", "run.targets"}
)
#: Modules of a run that a report may read: the frozen result, and the targets of the header.
FOR_REPORTS = {"pytest_amp.run.result", "pytest_amp.run.targets"}
#: Modules that see all parts of a run: pytest's hooks and fixtures, the verdict, and the freezing of its result.
WITH_SESSION = {"plugin.py", "fixtures.py", "run/controller.py", "run/freeze.py", "run/verdict.py"}
#: The HTML report, which is imported on request.
HTML = PACKAGE / "report" / "html"
FILES = sorted(PACKAGE.rglob("*.py"))


def _part(path: Path) -> str:
    return _part_of(".".join(("pytest_amp", *path.relative_to(PACKAGE).with_suffix("").parts)))


def _part_of(module: str) -> str:
    """Return the first name below the package; a module of ``run`` is a part of its own."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[0] == "run" and len(parts) > 1 else parts[:1])


@functools.cache  # most tests here read all files
def _imports(path: Path, *, anywhere: bool) -> tuple[tuple[str, str], ...]:
    """Return (module, name or "") of each import that runs: ``anywhere``, or as the module is imported."""
    return tuple(_imports_in(ast.parse(path.read_text(encoding="utf-8")), anywhere=anywhere))


def _imports_in(tree: ast.Module, *, anywhere: bool) -> Iterator[tuple[str, str]]:
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif anywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _modules(path: Path, *, anywhere: bool) -> Iterator[str]:
    """Yield the modules of this package that ``path`` imports, by their full names."""
    for module, name in _imports(path, anywhere=anywhere):
        if module.split(".")[0] != "pytest_amp":
            continue
        inner = "/".join([*module.split(".")[1:], name])
        if name and ((PACKAGE / f"{inner}.py").is_file() or (PACKAGE / inner / "__init__.py").is_file()):
            yield f"{module}.{name}"
        else:
            yield module


def test_parts_have_one_layer_each() -> None:
    assert sum(map(len, LAYERS.values())) == len(set.union(*LAYERS.values()))
    assert set.union(*LAYERS.values()) <= {_part(path) for path in FILES}


def test_imports_point_to_lower_layers() -> None:
    level = {part: number for number, parts in enumerate(LAYERS.values()) for part in parts}
    wrong = set()
    for path in FILES:
        part = _part(path)
        for module in _modules(path, anywhere=True):
            other = _part_of(module) if "." in module else "__init__"
            if other == "__init__" or (part, other) in ABOVE:
                continue  # the package itself has only its version
            if level.get(other, TOP) > level.get(part, TOP) or (part in ALONE and other not in {part, *ALONE[part]}):
                wrong.add(f"{path.relative_to(ROOT)} imports {module}")
    assert sorted(wrong) == []


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _with_packages(module: str) -> list[str]:
    """Return a module and the packages around it, which its import executes, too."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(2, len(parts) + 1)]


def _graph(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports, at module level or in a function.

    A package that collects its modules is around each of them: an import of it by its own module is left out.
    """
    graph = {}
    for path in paths:
        name = _name(path)
        modules = {part for module in _modules(path, anywhere=True) for part in _with_packages(module)}
        graph[name] = {module for module in modules if module != name and not name.startswith(f"{module}.")}
    return graph


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of an import cycle, the first one also at the end; an empty list without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_form_no_cycle() -> None:
    """Count imports in functions: Python allows such a cycle, and a reader gets lost in it."""
    graph = _graph(FILES)
    assert len(graph) > 300
    assert _circle(graph) == []


def test_cycle_through_an_import_in_a_function_is_detected(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("def late():\n    from pytest_amp.run import session\n", encoding="utf-8")
    assert list(_modules(module, anywhere=True)) == ["pytest_amp.run.session"]
    assert _with_packages("pytest_amp.run.session") == ["pytest_amp.run", "pytest_amp.run.session"]
    assert set(_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert _circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_reports_read_no_running_session() -> None:
    """Include annotations: a report that takes a session could read values that still change."""
    modules = {}
    for path in sorted((PACKAGE / "report").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules[path.relative_to(ROOT).as_posix()] = {name for name in names if name.startswith("pytest_amp.run")}
    assert {name: read - FOR_REPORTS for name, read in modules.items() if read - FOR_REPORTS} == {}
    assert modules["pytest_amp/report/terminal.py"] == FOR_REPORTS


def test_session_is_read_by_hooks_and_verdict_alone() -> None:
    """Other modules of a run receive the parts that they need."""
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        for module, name in _imports(path, anywhere=True)
        if module == "pytest_amp.run.session" and name in {"AmpSession", "KEY"}
    }
    assert readers == WITH_SESSION


@pytest.mark.parametrize("part", sorted(WITHOUT_TORCH))
def test_part_imports_no_torch(part: str) -> None:
    files = [path for path in FILES if _part(path) == part and path.parent != HTML]
    heavy = {"torch", "numpy", "jinja2", "hypothesis"}
    actual = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module, _ in _imports(path, anywhere=False)
        if module.split(".")[0] in heavy
    }
    assert actual == set()
    assert files


def test_suites_import_public_names_alone() -> None:
    wrong = set()
    for path in sorted((ROOT / "suites").rglob("*.py")):
        for module, name in _imports(path, anywhere=True):
            root = module.split(".")[0]
            part = _part_of(module if "." in module else f"{module}.{name}")
            if root == "suites" or (root == "pytest_amp" and part not in FOR_SUITES):
                wrong.add(f"{path.relative_to(ROOT)} imports {module}")
            if root == "pytest_amp" and any(word.startswith("_") for word in [*module.split("."), name]):
                wrong.add(f"{path.relative_to(ROOT)} imports {module}.{name}")
    assert sorted(wrong) == []


PRIVATE = ("_C", "_subclasses", "_dynamo", "_inductor", "_functorch", "_higher_order_ops", "_library", "_ops")


def test_private_names_of_torch_are_in_one_place() -> None:
    """Check imports of private names, also pytest's, in the package and the suites; ruff finds attributes."""
    wrong = set()
    for path in [*FILES, *sorted((ROOT / "suites").rglob("*.py"))]:
        if PACKAGE / "torch_private" in path.parents:
            continue
        for module, name in _imports(path, anywhere=True):
            words = [*module.split("."), name]
            private = words[0] == "torch" and (any(word in PRIVATE for word in words) or "_internal" in words)
            if private or words[0] == "_pytest":
                wrong.add(f"{path.relative_to(ROOT)} imports {module} {name}")
    assert sorted(wrong) == []


def test_files_have_at_most_400_lines() -> None:
    folders = ("pytest_amp", "suites", "tests", "tools", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
