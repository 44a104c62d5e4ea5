"""Expected failures are strict: one that passes is red. Those of the suites are data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.project import ROOT

#: Marks of a test that expects a failure: those of pytest and of this plugin.
_INLINE = re.compile(r"mark\.xfail\b|\bxfail=")


def _lenient(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield calls of ``pytest.mark.xfail`` without ``strict=True``, which the projects of users may not set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.xfail":
            strict = {keyword.arg: keyword.value for keyword in node.keywords}.get("strict")
            if not (isinstance(strict, ast.Constant) and strict.value is True):
                yield node


def test_expected_failures_are_strict() -> None:
    count, lenient = 0, []
    for path in sorted((ROOT / "pytest_amp").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        count += text.count("pytest.mark.xfail(")
        lenient += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in _lenient(ast.parse(text))]
    assert count
    assert lenient == []


def test_lenient_expected_failure_is_detected() -> None:
    marks = "pytest.mark.xfail(reason='a'), pytest.mark.xfail(strict=False), pytest.mark.xfail(strict=True, reason='b')"
    assert len(list(_lenient(ast.parse(marks)))) == 2


def test_suites_have_no_inline_expected_failure() -> None:
    """A row of suites/known.toml lists a fault of torch: no test changes with a release, a device or a machine."""
    actual = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "suites").rglob("*.py")
        if _INLINE.search(path.read_text(encoding="utf-8"))
    }
    assert actual == set()


def test_inline_expected_failure_is_detected() -> None:
    assert _INLINE.search("@pytest.mark.xfail(strict=True)")
    assert _INLINE.search("pytest.mark.amp(devices=['cuda'], xfail={'cuda': 'a/b#1'})")
    assert not _INLINE.search('pytest.xfail("no kernel")')
