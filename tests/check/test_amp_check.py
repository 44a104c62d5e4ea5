"""``amp.check`` in a user's project: one call, one failure, one report."""

from __future__ import annotations

import pytest

from tests.project import Project

MODELS = """
import torch
from torch import nn
from torch.nn import functional

def build():
    return nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 3))

def batch():
    x = torch.randn(48, 12)
    return {"x": x, "y": x[:, :3].argmax(-1)}

def loss(model, batch):
    return functional.cross_entropy(model(batch["x"]).float(), batch["y"])

class Normed(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

def build_wrong():
    return nn.Sequential(nn.Linear(12, 32), Normed(), nn.Linear(32, 3))

def usual(iteration):
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = functional.cross_entropy(iteration.model(iteration.batch["x"]), iteration.batch["y"])
    iteration.scaler.scale(loss).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()

def forgetful(iteration):
    with iteration.autocast():
        loss = iteration.loss()
    iteration.scaler.scale(loss).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()

def evaluate(evaluation):
    with torch.no_grad(), evaluation.autocast():
        return {"loss": evaluation.loss()}
"""


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_right_model_and_loop_pass_and_are_reported(project: Project, dtype: str) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models

        def test_it(amp):
            case = amp.case(models.build, models.batch, models.loss)
            report = amp.check(case, models.usual, models.evaluate, strict=True)
            assert report.entries == ()
            report.print()
        """,
    )
    result = project.here("--amp-device=cpu", f"--amp-dtype={dtype}", "-s", "-p", "no:randomly")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*it under autocast(cpu, *): no finding", "linter: train*", "training *pass*", "cost: *"]
    )


def test_check_collects_all_findings_in_one_failure(project: Project) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models, pytest

        def test_it(amp):
            case = amp.case(models.build_wrong, models.batch, models.loss)
            amp.check(case, models.forgetful)

        def test_warnings_alone(amp):
            case = amp.case(models.build_wrong, models.batch, models.loss)
            assert amp.check(case).warnings

        def test_accepted(amp):
            case = amp.case(models.build_wrong, models.batch, models.loss)
            kinds = [entry.kind for entry in amp.check(case).warnings]
            assert amp.check(case, strict=True, expect={"*": kinds}).accepted

        def test_accepted_and_gone(amp):
            case = amp.case(models.build, models.batch, models.loss)
            amp.check(case, expect={"0": "low-norm"})
        """,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "-p", "no:randomly")
    result.stdout.fnmatch_lines(
        [
            "*AmpFailure: it under autocast(cpu, bfloat16): 1 error and * warning*",
            "*error     check-training at *models.py:*",
            "*gradients are added to those of the iteration before*",
            "*warning   low-norm at models.py:* in 1*",
            "*page      pytest-amp finding *",
            "*now *red: training*",
            "*rerun     pytest 'test_it.py::test_it*",
        ]
    )
    result.stdout.fnmatch_lines(["*expected-finding-gone in 0*"])
    result.stdout.fnmatch_lines(["note      cpu-bf16: warnings_alone: * low-norm at models.py:* in 1*strict=True*"])
    result.assert_outcomes(failed=2, passed=2)


def test_model_that_cannot_be_built_is_reported_once(project: Project) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models

        def build():
            raise ValueError("no weights")

        def test_it(amp):
            amp.check(amp.case(build, models.batch, models.loss))
        """,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.stdout.fnmatch_lines(["AmpFailure: it under *: 1 error", "*it: its build raised ValueError*"])
    assert str(result.stdout).count("its build raised ValueError") == 1
    result.assert_outcomes(failed=1)


def test_nonfinite_buffers_are_accepted_as_the_failure_says(project: Project) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models, pytest, torch
        from torch import nn

        class Largest(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("largest", torch.ones(32))
            def forward(self, x):
                if self.training:
                    self.largest = torch.maximum(self.largest, x.detach().abs().amax(0).float())
                return x

        def build():
            return nn.Sequential(nn.Linear(12, 32), Largest(), nn.Linear(32, 3))

        @pytest.mark.parametrize("buffers", [(), ["*.largest"]])
        def test_it(amp, buffers):
            amp.check(amp.case(build, models.batch, models.loss), nonfinite_buffers=buffers)
        """,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16")
    result.stdout.fnmatch_lines(["*accept    nonfinite_buffers=*1.largest* names them, or a pattern"])
    result.assert_outcomes(passed=1, failed=1)


def test_wrong_arguments_are_refused(project: Project) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models, pytest

        @pytest.mark.parametrize("keywords", [{"strict": 1}, {"train": 3}, {"expect": ["a"]}, {"optimizer": 3},
            {"nonfinite_buffers": "a"}])
        def test_it(amp, keywords):
            case = amp.case(models.build, models.batch, models.loss)
            with pytest.raises(ValueError, match="expected"):
                amp.check(case, **keywords)
            amp.record(f"asked {next(iter(keywords))}", 1)
        """,
    )
    project.here("--amp-device=cpu", "--amp-dtype=bf16").assert_outcomes(passed=5)


def test_failure_has_colour_in_a_terminal(project: Project) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models

        def test_it(amp):
            case = amp.case(models.build_wrong, models.batch, models.loss)
            amp.check(case, strict=True)
        """,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--color=yes", "--junit-xml=junit.xml")
    text = "\n".join(result.outlines)
    assert "\x1b[31m\x1b[1mAmpFailure: it under autocast(cpu, bfloat16): 1 warning\x1b[0m" in text
    assert "\x1b[33m\x1b[1m  warning   \x1b[0mlow-norm at models.py:" in text
    assert "\x1b" not in (project.path / "junit.xml").read_text(encoding="utf-8")
    assert max(len(line) for line in text.splitlines() if "page " in line) < 120


TILTED = """
class Tilted(nn.Module):
    def forward(self, x):
        return x * 1.1 if x.dtype in (torch.bfloat16, torch.float16) else x

def build_tilted():
    return nn.Sequential(nn.Linear(12, 32), Tilted(), nn.Linear(32, 3))
"""


def test_branch_for_low_dtypes_is_a_finding_with_its_line(project: Project) -> None:
    models = (MODELS + TILTED).strip()
    project.write(
        models=models,
        test_it="""
        import models

        def test_it(amp):
            amp.check(amp.case(models.build_tilted, models.batch, models.loss))
        """,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "-p", "no:randomly")
    result.assert_outcomes(failed=1)
    line = next(at for at, text in enumerate(models.splitlines(), 1) if "1.1" in text)
    result.stdout.fnmatch_lines([f"*error*low-branch at models.py:{line}", "*before anything is rounded*"])


def test_failed_check_of_the_same_line_is_a_part_of_the_error(project: Project) -> None:
    project.write(
        models=MODELS,
        test_it="""
        import models

        def penalised(iteration):
            iteration.optimizer.zero_grad()
            with iteration.autocast():
                loss = iteration.loss()
            penalty = 1e-3 * sum(weight.abs().sum() for weight in iteration.model.parameters())
            penalty.backward()
            iteration.scaler.scale(loss).backward()
            iteration.scaler.step(iteration.optimizer)
            iteration.scaler.update()

        def test_it(amp):
            amp.check(amp.case(models.build, models.batch, models.loss), penalised)
        """,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16", "-p", "no:randomly")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*error     mixed-gradients at test_it.py:*", "*also *check-scaler: *"])
    result.stdout.no_fnmatch_line("*error     check-scaler*")


def test_model_that_returns_low_tensors_in_a_tuple_alone_is_checked(project: Project) -> None:
    project.write(
        test_it="""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8) / 3)

    def forward(self, x):
        return nn.functional.linear(x, self.weight), self.weight.square().sum()


def loss(model, batch):
    output, penalty = model(batch)
    return output.float().square().mean() + penalty / 100


def test_it(amp):
    amp.check(amp.case(Layer, lambda: torch.randn(16, 8), loss))
"""
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*no module returns a tensor in float16*")


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
