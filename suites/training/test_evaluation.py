"""Evaluation under autocast is as exact as rounding allows, and does not affect the surrounding training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import standard_step
from pytest_amp.training import Setup, TrainingIteration, accuracy, run

from .trajectories import TASKS, same, snapshot, trained

MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "grad": contextlib.nullcontext,
}


def _evaluate(amp: SuiteAmp, model: nn.Module, batch: Any, mode: str) -> torch.Tensor:
    model.eval()
    with MODES[mode](), amp.autocast():
        logits: torch.Tensor = model(batch["inputs"])
    model.train()
    return logits.detach()


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_leaves_autocast_off_and_weights_alone(amp: SuiteAmp, mode: str) -> None:
    """After it a product is float32, and every parameter and buffer has the same bits as before."""
    runs = trained(amp, "images")
    model = runs.model(low=True)
    before = snapshot(model.state_dict())
    logits = _evaluate(amp, model, runs.evaluation(), mode)
    assert logits.dtype is amp.dtype, "evaluation was not in the autocast dtype"
    if torch.is_autocast_enabled(amp.device.type):
        torch.set_autocast_enabled(amp.device.type, False)  # noqa: FBT003  # torch's; for the tests after this
        raise AmpFailure(
            f"autocast is still on after an evaluation in {mode} on {amp.target.id}",
            label_before="rule",
            before="a region ends with its with statement",
            now=f"torch.is_autocast_enabled({amp.device.type!r}) is True",
            likely="leaving a region in this grad mode does not restore its state",
        )
    changed = [name for name, value in model.state_dict().items() if not same(value, before[name])]
    if changed:
        raise AmpFailure(
            f"an evaluation in {mode} on {amp.target.id} changes the model",
            label_before="rule",
            before="parameters and buffers of before",
            now=", ".join(changed),
            likely="weights are cast in place, or statistics are updated in evaluation",
        )


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_training_with_evaluations_in_it_is_the_one_without(amp: SuiteAmp, mode: str) -> None:
    """Evaluate after every third step: losses and parameters have the bits of a training without evaluations."""
    runs = trained(amp, "images")
    batch = runs.evaluation()

    def observed(iteration: Any) -> None:
        standard_step(iteration)
        if iteration.index % 3 == 0:
            with torch.random.fork_rng(devices=[]):
                _evaluate(amp, iteration.model, batch, mode)

    setup = Setup(
        runs.task.case, amp.device, amp.precision, steps=runs.task.steps, seed=runs.seed, train=observed,
        make_optimizer=runs.task.optimizer, fresh=True,
    )  # fmt: skip
    plain, actual = runs.run(low=True), run(setup, low=True)
    assert actual.losses == plain.losses
    assert same(actual.model.state_dict(), plain.model.state_dict())


@pytest.mark.parametrize("when", ["same region", "own region"])
def test_an_evaluation_inside_the_step_sees_the_stepped_weights(amp: SuiteAmp, when: str) -> None:
    """Evaluate in the region of the whole loop under no_grad, too, whose cached casts are older than the step."""
    runs = trained(amp, "images")
    batch = runs.evaluation()
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def looked_at(iteration: TrainingIteration) -> None:
        standard_step(iteration)
        region: Any = iteration.autocast()
        with region:
            if when == "own region":
                with torch.no_grad(), iteration.autocast():
                    output = iteration.model(batch["inputs"])
            else:
                with torch.no_grad():
                    output = iteration.model(batch["inputs"])
        outputs.append((output, _fresh(amp, iteration.model, batch)))

    setup = Setup(
        runs.task.case, amp.device, amp.precision, steps=3, seed=runs.seed, train=looked_at,
        make_optimizer=runs.task.optimizer, fresh=True,
    )  # fmt: skip
    run(setup, low=True)
    assert [bool(torch.equal(output, fresh)) for output, fresh in outputs] == [True] * 3
    assert not torch.equal(outputs[0][0], outputs[1][0])


def _fresh(amp: SuiteAmp, model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the logits with no cache at all."""
    with torch.no_grad(), amp.autocast(cache_enabled=False):
        logits: torch.Tensor = model(batch["inputs"])
    return logits


@pytest.mark.parametrize("task", TASKS)
def test_evaluation_in_autocast_agrees_with_float32(amp: SuiteAmp, task: str) -> None:
    """Predictions of one model differ only if the two largest logits are closer than rounding."""
    runs = trained(amp, task)
    model, batch = runs.model(low=True).eval(), runs.evaluation()
    with torch.no_grad():
        float32 = model(batch["inputs"]).flatten(0, -2)
        with amp.autocast():
            low = model(batch["inputs"]).flatten(0, -2).float()
    top = float32.topk(2).values
    # Twelve roundings, each relative to the logits: as for the loss (suites/scaler/test_training.py).
    near = (top[:, 0] - top[:, 1]) <= 16 * amp.precision.u * float32.abs().max()
    differs = float32.argmax(-1) != low.argmax(-1)
    assert float(near.double().mean()) < 0.75, "nearly all logits are too close for a comparison"
    assert int((differs & ~near).sum()) == 0
    with amp.autocast():
        assert accuracy(model, batch) > 0.3
