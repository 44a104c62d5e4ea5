"""``amp.check`` of a model with sparse gradients, which the default optimizer of a training refuses."""

from __future__ import annotations

import pytest

from tests.project import Project


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_training_with_sparse_gradients_has_an_optimizer_that_takes_them(project: Project, dtype: str) -> None:
    project.write(
        test_it="""
        import torch
        from torch import nn
        from torch.nn import functional

        def build():
            return nn.Sequential(nn.Embedding(16, 32, sparse=True), nn.Flatten(), nn.Linear(96, 3))

        def batch():
            words = torch.randint(16, (48, 3))
            return {"words": words, "target": words.argmax(-1)}

        def loss(model, batch):
            return functional.cross_entropy(model(batch["words"]).float(), batch["target"])

        def test_it(amp):
            report = amp.check(amp.case(build, batch, loss))
            assert {line.check: line.verdict for line in report.checks}["training"] == "pass", str(report)
        """,
    )
    project.here("--amp-device=cpu", f"--amp-dtype={dtype}", "-p", "no:randomly").assert_outcomes(passed=1)
