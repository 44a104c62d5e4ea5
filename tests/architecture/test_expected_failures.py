"""Expected failures are strict, so that one that passes is red: it was fixed, or the test does not check it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.project import ROOT


def _lenient(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield calls of ``pytest.mark.xfail`` without ``strict=True``, which the projects of users may not set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.xfail":
            strict = {keyword.arg: keyword.value for keyword in node.keywords}.get("strict")
            if not (isinstance(strict, ast.Constant) and strict.value is True):
                yield node


def test_expected_failures_are_strict() -> None:
    actual, lenient = 0, []
    for path in [*sorted((ROOT / "suites").rglob("*.py")), *sorted((ROOT / "pytest_amp").rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        actual += text.count("pytest.mark.xfail(")
        lenient += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in _lenient(ast.parse(text))]
    assert actual
    assert lenient == []


def test_a_lenient_one_is_found() -> None:
    marks = "pytest.mark.xfail(reason='a'), pytest.mark.xfail(strict=False), pytest.mark.xfail(strict=True, reason='b')"
    assert len(list(_lenient(ast.parse(marks)))) == 2
