"""Loss curves in mixed precision stay within the spread of float32 runs at every step, and the task is learned."""

from __future__ import annotations

import statistics

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.training import accuracy

from .trajectories import TASKS, Trained, trained

#: Other initial weights and other data, which show the spread of the accuracy.
_SEEDS = 4


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_stays_in_the_band_of_float32(amp: SuiteAmp, task: str) -> None:
    """Allow four spreads of float32 runs with randomly rounded weights and gradients: pytest_amp/training/band.py."""
    runs = trained(amp, task)
    actual, band = runs.run(low=True), runs.band
    assert band.visible > 50, "the band is too wide: it contains a training that learns half as much"
    margin = band.margin(actual.losses)
    amp.observe(f"{task}/loss beside fp32", margin, kind="ratio", allowed=1.0)
    left = band.leaves(actual.losses)
    if left is not None:
        raise AmpFailure(
            f"the loss of {task} leaves the band of float32 at step {left} of {len(actual.losses)}",
            label_before="fp32",
            before=f"{band.losses[left]:.5g} within {band.half[left]:.3g}",
            now=f"{actual.losses[left]:.5g} in {amp.precision.name} on {amp.target.id}",
            likely="gradients, weights or updates are further from float32 than one rounding each",
        )


def _accuracy(runs: Trained, *, low: bool) -> float:
    # Trained outside the region: within one, the casts of weights would stay cached for the whole training.
    model = runs.model(low=low).eval()
    with runs.amp.autocast(enabled=low):
        return accuracy(model, runs.evaluation())


@pytest.mark.parametrize("task", TASKS)
def test_the_task_is_learned_as_well_as_in_float32(amp: SuiteAmp, task: str) -> None:
    """Compare the final accuracy, with its spread from float32 runs of four seeds.

    The limit is three times their standard deviation, or three times that of the binomial distribution if it is larger.
    """
    float32_accuracies = [_accuracy(trained(amp, task, seed=seed), low=False) for seed in range(_SEEDS)]
    learned = trained(amp, task).task.learned
    assert min(float32_accuracies) > learned, (
        f"float32 reaches only {min(float32_accuracies):.1%}: the task is too hard for a comparison"
    )
    actual = _accuracy(trained(amp, task), low=True)
    count = trained(amp, task).evaluation()["targets"].numel()
    chance = (float32_accuracies[0] * (1 - float32_accuracies[0]) / count) ** 0.5
    allowed = 3 * max(statistics.stdev(float32_accuracies), chance) * amp.config.tolerance_scale
    amp.observe(f"{task}/accuracy beside fp32", abs(actual - float32_accuracies[0]), kind="ratio", allowed=allowed)
    if not abs(actual - float32_accuracies[0]) <= allowed:
        raise AmpFailure(
            f"{task} is not learned as in float32",
            label_before="fp32",
            before=f"accuracy {float32_accuracies[0]:.1%} within {allowed:.1%}; "
            f"four seeds {', '.join(f'{accuracy:.1%}' for accuracy in float32_accuracies)}",
            now=f"{actual:.1%} in {amp.precision.name} on {amp.target.id}",
            likely="training or evaluation under autocast computes something else",
        )
