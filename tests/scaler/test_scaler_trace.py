"""scaler_trace and check_scaler through the fixture."""

from __future__ import annotations

from pytest_amp.record import Kind, read_record
from tests.project import Project

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))

def batch():
    return torch.randn(4, 8)

def loss(model, batch):
    return model(batch).float().square().mean()
"""


def test_scaler_trace_returns_the_steps(project: Project) -> None:
    project.write(
        model=MODEL,
        test_it="""
import pytest
from model import batch, build, loss

def test_trace(amp):
    case = amp.case(build, batch, loss)
    traced = amp.scaler_trace(case, steps=6, overflow_gradients_at=(1, 2), init_scale=256.0, growth_interval=2)
    assert [step.skipped for step in traced] == [False, True, True, False, False, False]
    assert [step.found_inf for step in traced] == [step.skipped for step in traced]
    assert [step.scale for step in traced] == [256.0, 256.0, 128.0, 64.0, 64.0, 128.0]
    assert [step.scale_after for step in traced] == [256.0, 128.0, 64.0, 64.0, 128.0, 128.0]
    assert [step.growth_tracker for step in traced] == [1, 0, 0, 1, 0, 1]

def test_a_function_is_traced(amp, amp_device):
    import torch
    parameter = torch.nn.Parameter(torch.ones(3, device=amp_device))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    factors = iter([1.0, float("inf"), 1.0])

    def iterate(scaler):
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * next(factors)).backward()
        scaler.step(optimizer)
        scaler.update()

    traced = amp.scaler_trace(iterate, steps=3, init_scale=8.0)
    assert [(step.scale, step.skipped) for step in traced] == [(8.0, False), (8.0, True), (4.0, False)]

def test_what_was_not_stepped_was_not_skipped(amp, amp_device):
    import torch
    parameter = torch.nn.Parameter(torch.ones(3, device=amp_device))
    optimizer = torch.optim.SGD([parameter], lr=0.5)

    def accumulate(scaler):
        scaler.scale(parameter.sum()).backward()

    (step,) = amp.scaler_trace(accumulate, steps=1, init_scale=8.0)
    assert (step.skipped, step.found_inf, step.growth_tracker) == (False, False, 0)

def test_a_parameter_that_is_no_number_does_not_move(amp, amp_device):
    import torch
    parameter = torch.nn.Parameter(torch.tensor([1.0, float("nan")], device=amp_device))
    optimizer = torch.optim.SGD([parameter], lr=0.5)

    def iterate(scaler):
        scaler.scale(parameter.sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()

    (step,) = amp.scaler_trace(iterate, steps=1, init_scale=8.0)
    assert (step.skipped, step.found_inf) == (True, True)

def test_each_iteration_draws_other_numbers_and_the_same_in_each_run(amp):
    import torch
    case, drawn = amp.case(build, batch, loss), []

    def train(iteration):
        drawn.append(torch.rand(()).item())

    for _ in range(2):
        amp.scaler_trace(case, steps=3, train=train)
    assert drawn[:3] == drawn[3:] and len(set(drawn)) == 3

def test_misuse(amp):
    with pytest.raises(ValueError, match="they need a case"):
        amp.scaler_trace(lambda scaler: None, steps=1, overflow_gradients_at=(1,))
""",
    )
    project.here("--amp-device=cpu", "--amp-dtype=bf16,fp16").assert_outcomes(passed=12)


_WRONG = {
    "check_scaler(CASE, optimizer=made())": "optimizer is of type SGD; expected a function",
    "check_scaler(CASE, optimizer=list)": "optimizer made of type list; expected a torch.optim.Optimizer",
    "check_scaler(CASE, overflow_gradients_at=2)": "overflow_gradients_at=2; expected a collection of iterations, such",
    "check_scaler(CASE, overflow_gradients_at=(2.0,))": "overflow_gradients_at=(2.0,); expected a collection of",
    "check_scaler(CASE, overflow_activations_at='6')": "overflow_activations_at='6'; expected a collection of",
    "check_scaler(CASE, nonfinite_buffers='norm.mean')": "nonfinite_buffers='norm.mean'; expected a collection of",
    "check_scaler(CASE, train='step')": "train is of type str; expected a function",
    "check_scaler(build())": "check_scaler takes a case; this is of type Sequential; amp.case",
    "check_training(build(), steps=5)": "check_training takes a case; this is of type Sequential; amp.case",
    "check_training(CASE, steps=1)": "steps=1; expected a whole number, 2 or more",
    "check_training(CASE, steps=5.0)": "steps=5.0; expected a whole number",
    "check_training(CASE, steps=5, optimizer=made())": "optimizer is of type SGD",
    "check_training(CASE, steps=5, train=3)": "train is of type int; expected a function",
    "scaler_trace(3)": "missing 1 required keyword-only argument: 'steps'",
    "scaler_trace(3, steps=3)": "scaler_trace of 3; expected a case, or a function",
    "scaler_trace(CASE, steps=0)": "steps=0; expected a whole number, 1 or more",
    "scaler_trace(CASE, steps=3, init_scale='big')": "init_scale='big'; expected a finite number",
    "scaler_trace(CASE, steps=3, growth_interval=0)": "growth_interval=0; expected a whole number, 1 or more",
}


def test_wrong_arguments_are_refused_in_one_line(project: Project) -> None:
    """Print the test's own line and the expected arguments, without a frame of the plugin."""
    head = "import torch\nfrom model import batch, build, loss\n\n"
    instance = "def made():\n    return torch.optim.SGD(build().parameters(), lr=0.1)\n\n"
    case = "    CASE = amp.case(build, batch, loss)\n"
    calls = [f"def test_{i}(amp):\n{case}    amp.{call}\n\n" for i, call in enumerate(_WRONG)]
    project.write(model=MODEL, test_it=head + instance + "".join(calls))
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16", "-p", "no:xdist")
    result.assert_outcomes(failed=len(_WRONG))
    text = result.stdout.str()
    assert [words for words in _WRONG.values() if words not in text] == []
    assert "loops.py" not in text
    assert "given.py" not in text


def test_check_scaler_records_skipped_steps(project: Project) -> None:
    project.write(
        model=MODEL,
        test_it="""
import torch
from model import batch, build, loss

def test_right(amp):
    traced = amp.check_scaler(amp.case(build, batch, loss), optimizer=lambda p: torch.optim.Adam(p, fused=True))
    assert len(traced) == 10

def test_wrong(amp):
    def train(iteration):
        with iteration.autocast():
            value = iteration.loss()
        iteration.scaler.scale(value).backward()
        iteration.optimizer.step()

    amp.check_scaler(amp.case(build, batch, loss), train=train)
""",
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16", "--amp-record=run.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: wrong, iteration 0: the training step calls the optimizer's own step, past the scaler",
            "*rerun*test_wrong*",
        ]
    )
    skipped = read_record(project.path / "run.json").by_key()["project/cpu/fp16/test_it::test_right/skipped"]
    assert (skipped.kind, skipped.value) == (Kind.STATE, ["2", "6"])


def test_check_scaler_within_a_region_is_refused(project: Project) -> None:
    project.write(
        model=MODEL,
        test_it="""
from model import batch, build, loss

def test_it(amp):
    with amp.autocast():
        amp.check_scaler(amp.case(build, batch, loss))
""",
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*check_scaler was called while autocast(cpu) is on*"])
