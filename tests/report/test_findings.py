"""Findings of ``amp.check`` in the reports, each with a link to the page of its kind."""

from __future__ import annotations

import pytest

from pytest_amp.report import findings
from pytest_amp.report.findings import FindingText, findings_in, page_of
from tests.project import Project

MODELS = """
import torch
from torch import nn
from torch.nn import functional

class Normed(nn.Module):
    def forward(self, x):
        mean_square = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + 1e-6)

def build():
    return nn.Sequential(nn.Linear(12, 32), Normed(), nn.Linear(32, 3))

def batch():
    x = torch.randn(48, 12)
    return {"x": x, "y": x[:, :3].argmax(-1)}

def loss(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"]) + 1e-3 * model(batch["x"]).square().sum()
"""
TEST = """
import models

def test_it(amp):
    amp.check(amp.case(models.build, models.batch, models.loss), strict=True)
"""


def test_findings_link_to_their_page_in_html_and_markdown(project: Project) -> None:
    pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-amp[html]'")
    project.write(models=MODELS, test_it=TEST)
    reports = ("--amp-report=md:page.md", "--amp-report=html:page.html")
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", *reports)
    result.stdout.fnmatch_lines(["*warning   low-norm at models.py:7 in 1*", "*page      pytest-amp finding low-norm"])
    markdown = (project.path / "page.md").read_text(encoding="utf-8")
    html = (project.path / "page.html").read_text(encoding="utf-8")
    for kind, place in (("low-norm", "at models.py:7 in 1"), ("low-loss", "at models.py:18")):
        assert f"  - warning [{kind}]({page_of(kind)}) {place}: " in markdown
        assert f'<a href="{page_of(kind)}">{kind}</a> {place}: ' in html
    assert "statistics of a norm" in markdown
    assert "statistics of a norm" in html


def test_findings_are_read_with_and_without_further_lines() -> None:
    text = """AmpFailure: case under autocast(cpu, bfloat16): 1 error and 1 warning
  error     no-region at loop.py:4
              the training step opens no region
    mend      Call the model inside
    page      pytest-amp finding no-region
  warning   low-loss at loss.py:9 in head: the loss is computed in bfloat16: mean
  now       pass: dtypes"""
    assert findings_in(text) == (
        FindingText("error", "no-region", "at loop.py:4", "the training step opens no region"),
        FindingText("warning", "low-loss", "at loss.py:9 in head", "the loss is computed in bfloat16: mean"),
    )
    assert findings_in("AmpFailure: softmax is low\n  now       low") == ()


def test_page_is_on_the_site_that_the_package_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_site", lambda: None)
    assert page_of("low-norm") == "docs/findings/low-norm.md"
    monkeypatch.setattr(findings, "_site", lambda: "https://docs.example")
    assert page_of("low-norm") == "https://docs.example/findings/low-norm.html"
