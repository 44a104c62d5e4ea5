"""The README's test of a user's own model, unchanged: every check of one case, one after another."""

from __future__ import annotations

import re

import pytest

from tests.project import ROOT, Project

#: Parts that the README's test leaves to its reader. Activations outweigh weights, as in training.
MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x))))


def build_model():
    return Model()


def make_batch():
    return torch.randn(512, 16), torch.randint(4, (512,))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


"""


def of_the_readme() -> str:
    """Return the function of the README that calls each check."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    actual = re.search(r"^def test_my_model_check_by_check\(amp\):\n(?:    .*\n)+", text, re.MULTILINE)
    assert actual is not None
    return actual[0]


def test_every_check_of_the_readme_passes_on_one_case(project: Project) -> None:
    source = of_the_readme()
    project.write(test_it=MODEL + source)
    result = project.apart(  # torch's compiler cannot be imported twice
        "--amp-device=cpu", "--amp-dtype=bf16,fp16", "--amp-report=json:report.json", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=2)
    names = {name.partition("::test_my_model_check_by_check/")[2] for name in project.observed("report.json")}
    assert {"summary.loss", "skipped", "steps skipped", "casts", "bytes saved", "first.dtype"} <= names


@pytest.mark.parametrize(
    "order",
    [
        ("check_scaler(case)", "check_training(case, steps=50)"),
        ("check_training(case, steps=50)", "check_scaler(case)"),
    ],
)
def test_two_checks_of_one_case_observe_names_of_their_own(order: tuple[str, str], project: Project) -> None:
    lines = "\n".join(f"    amp.{line}" for line in order)
    project.write(test_it=f"{MODEL}def test_it(amp):\n    case = amp.case(build_model, make_batch, loss_fn)\n{lines}\n")
    project.here("--amp-device=cpu", "--amp-dtype=bf16,fp16").assert_outcomes(passed=2)
