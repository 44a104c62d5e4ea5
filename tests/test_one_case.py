"""Test of a user's own model in docs/how-to/single-checks.md: every check of one case, one after another."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_snippets import BLOCK
from tests.project import ROOT, Project

PAGE = (ROOT / "docs" / "how-to" / "single-checks.md").read_text(encoding="utf-8")
#: Model, batch and loss of the page. Activations outweigh weights, as in training.
MODEL = next(text for language, text in BLOCK.findall(PAGE) if text.startswith("# model.py\n"))


def of_the_page() -> str:
    """Return the function of the page that calls each check."""
    function = re.search(r"^def test_every_check\(amp\):\n(?:    .*\n)+", PAGE, re.MULTILINE)
    assert function is not None
    return function[0]


def test_checks_of_the_page_pass_on_one_case(project: Project) -> None:
    project.write(test_it=f"{MODEL}\n\n{of_the_page()}")
    result = project.apart(  # torch's compiler cannot be imported twice
        "--amp-device=cpu", "--amp-dtype=bf16,fp16", "--amp-report=json:report.json", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=2)
    names = {name.partition("::test_every_check/")[2] for name in project.observed("report.json")}
    assert {"summary.loss", "skipped", "steps skipped", "casts", "bytes saved", "first.dtype"} <= names


@pytest.mark.parametrize(
    "order",
    [
        ("check_scaler(case)", "check_training(case, steps=50)"),
        ("check_training(case, steps=50)", "check_scaler(case)"),
    ],
)
def test_two_checks_of_one_case_use_different_keys(order: tuple[str, str], project: Project) -> None:
    lines = "\n".join(f"    amp.{line}" for line in order)
    project.write(test_it=f"{MODEL}\n\ndef test_it(amp):\n    case = amp.case(Model, make_batch, loss_fn)\n{lines}\n")
    project.here("--amp-device=cpu", "--amp-dtype=bf16,fp16").assert_outcomes(passed=2)
