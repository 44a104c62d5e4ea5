"""README: its test fails with the printed message, and passes with the printed change."""

from __future__ import annotations

import re

import pytest

from pytest_amp.config import OPTIONS
from tests.docs.test_snippets import BLOCK
from tests.project import ROOT, Project

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = BLOCK.findall(README)


def block(language: str) -> str:
    """Return the only block of README in a language."""
    (text,) = [text for name, text in BLOCKS if name == language]
    return text


def without_numbers(text: str) -> str:
    """Return a text with every number, and the name of torch's build and of the CPU, replaced by one character.

    The count of errors and the lines of the test remain: a second error is another message.
    """
    text = re.sub(r"on torch \S+, .*", "on torch #", text)
    line_or_count = r"(?<!test_my_model\.py:)(?<!lines )(?<!and )", r"(?! errors?$)"
    return re.sub(r"\b\d+(\.\d+)?".join(line_or_count), "#", text, flags=re.MULTILINE)


def corrected(source: str, change: str) -> str:
    """Apply a change of which each removed line is replaced by the added line in the same place."""
    removed = [line[1:] for line in change.splitlines() if line.startswith("-")]
    added = [line[1:] for line in change.splitlines() if line.startswith("+")]
    for old, new in zip(removed, added, strict=True):
        assert source.count(f"{old}\n") == 1, old
        source = source.replace(f"{old}\n", f"{new}\n")
    return source


def test_readme_is_short_and_begins_with_a_failure() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert lines.index("```text") < 50
    assert not re.search(r"<[a-z ]+>|OWNER|HASH|your-", README)


def test_readme_test_fails_as_shown_and_passes_as_corrected(project: Project) -> None:
    source = block("python")
    project.write(test_my_model=source)
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-p", "no:randomly")
    result.assert_outcomes(failed=1)
    printed = without_numbers("\n".join(line.rstrip() for line in result.outlines))
    assert without_numbers(block("text")) in f"{printed}\n"
    project.write(test_my_model=corrected(source, block("diff")))
    project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-p", "no:randomly").assert_outcomes(passed=1)


def test_readme_message_is_compared_with_its_words() -> None:
    message = block("text")
    assert without_numbers(message) != without_numbers(message.replace("low-angles", "low-norm"))
    assert without_numbers(message) != without_numbers(message.replace("1 error", "2 errors"))
    assert without_numbers(message) != without_numbers(message.replace("test_my_model.py:14", "test_my_model.py:15"))
    assert without_numbers(message) == without_numbers(message.replace("12.8", "12.9"))


def test_readme_workflow_uses_existing_options() -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is in the dependency group test")
    steps = yaml.safe_load(block("yaml"))
    words = [word for step in steps for word in step["run"].split()]
    options = {option.name for option in OPTIONS}
    used = [word.partition("=")[0] for word in words if word.startswith("--amp-")]
    assert used
    assert set(used) <= options
