"""A training that leaves its band with one seed of three passes with a note; with each seed it fails."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, Project

DISTURBED = """
import torch
from pytest_amp.cases import mlp
from pytest_amp.scaler import standard_step


def step(iteration):
    # Torch is seeded with the run's seed plus 1009 times the index of the step.
    seed = torch.initial_seed() - 1009 * iteration.index
    if iteration.low and iteration.index == 3 and seed in {seeds}:
        with torch.no_grad():
            for parameter in iteration.model.parameters():
                parameter.mul_(1.5)
    standard_step(iteration)


def test_it(amp):
    amp.check_training(mlp(width=32, batch=16), steps=12, train=step, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
"""


@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 2)], ids=str)
def test_failure_of_one_seed_is_a_note_and_of_two_is_red(project: Project, seeds: tuple[int, ...]) -> None:
    project.write(test_it=DISTURBED.replace("{seeds}", str(seeds)))
    result = project.here(*ON_CPU, "--amp-record=run.json")
    note = "*note*the loss leaves the band*with seed 0 and not with the next two, by which it is judged*"
    if len(seeds) == 1:
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines([note])
        result.stdout.no_fnmatch_line("*lost in*")
    else:
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*AmpFailure: mlp: the loss leaves the band of float32 at step 3 of 0 to 11"])
        result.stdout.no_fnmatch_line(note)
        result.stdout.no_fnmatch_line("*lost in*")
