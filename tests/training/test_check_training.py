"""check_training accepts correct trainings, and names step and cause of a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, decoder, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import MakeOptimizer, standard_step
from pytest_amp.training import Setup, TrainingIteration, TrainingStep, Trajectory, check_training, images
from tests.observing import Noted, unheeded

BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def run(
    train: TrainingStep = standard_step,
    *,
    case: Case | None = None,
    precision: Precision = BF16,
    optimizer: MakeOptimizer = sgd,
    steps: int = 12,
    fresh: bool = False,
    observed: Noted | None = None,
) -> Trajectory:
    setup = Setup(
        case or mlp(width=32, batch=16), find_device("cpu"), precision, steps=steps, train=train,
        make_optimizer=optimizer, fresh=fresh,
    )  # fmt: skip
    return check_training(setup, unheeded if observed is None else observed.observe)[0]


def forward(iteration: TrainingIteration) -> torch.Tensor:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        return iteration.loss()


def finish(iteration: TrainingIteration, loss: torch.Tensor) -> None:
    scaled: Any = iteration.scaler.scale(loss)
    scaled.backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@BOTH
@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_standard_step_passes(precision: Precision, optimizer: MakeOptimizer) -> None:
    observed = Noted()
    actual = run(precision=precision, optimizer=optimizer, observed=observed)
    assert len(actual.losses) == 12
    assert set(observed) == {"mlp/loss beside fp32", "mlp/steps skipped"}
    assert 0 < observed["mlp/loss beside fp32"] < 1


@pytest.mark.parametrize("seed", range(3))
def test_fresh_batches_and_dropout_pass(seed: int) -> None:
    task = images()
    case = Case(
        "dropped",
        lambda: nn.Sequential(task.case.build(), nn.Dropout(0.1)),
        task.case.batch,
        task.case.loss,
    )
    setup = Setup(case, find_device("cpu"), BF16, steps=40, seed=seed, make_optimizer=task.optimizer, fresh=True)
    check_training(setup, unheeded)


def test_scaler_is_enabled_only_in_fp16() -> None:
    on: dict[str, set[tuple[bool, bool]]] = {}
    for precision in (BF16, FP16):

        def train(iteration: TrainingIteration, name: str = precision.name) -> None:
            on.setdefault(name, set()).add((iteration.low, iteration.scaler.is_enabled()))
            standard_step(iteration)

        run(train, precision=precision)
    assert on == {"bf16": {(False, False), (True, False)}, "fp16": {(False, False), (True, True)}}


def test_skipped_steps_are_repeated() -> None:
    """A loss times 64 overflows at the first scales: the n-th loss is still that of the n-th update."""

    def train(iteration: TrainingIteration) -> None:
        finish(iteration, forward(iteration) * 2.0**8)

    observed = Noted()
    run(train, precision=FP16, optimizer=lambda p: torch.optim.SGD(p, lr=0.1 * 2.0**-8), observed=observed)
    assert observed["mlp/steps skipped"] > 0


# Mistakes of users, and the expected text of the failure.


def clips_scaled_gradients(iteration: TrainingIteration) -> None:
    scaled: Any = iteration.scaler.scale(forward(iteration))
    scaled.backward()
    nn.utils.clip_grad_norm_(iteration.model.parameters(), 0.5)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def clips_a_little(iteration: TrainingIteration) -> None:
    """Clip at a larger norm, so that not all of the step rounds away."""
    scaled: Any = iteration.scaler.scale(forward(iteration))
    scaled.backward()
    nn.utils.clip_grad_norm_(iteration.model.parameters(), 0.5 * 2.0**12)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def steps_past_the_scaler(iteration: TrainingIteration) -> None:
    scaled: Any = iteration.scaler.scale(forward(iteration))
    scaled.backward()
    iteration.optimizer.step()


def does_not_scale(iteration: TrainingIteration) -> None:
    """Scale too little."""
    finish(iteration, forward(iteration) * 2.0**-36)


def rounds_weights(iteration: TrainingIteration) -> None:
    standard_step(iteration)
    if iteration.low:
        with torch.no_grad():
            for p in iteration.model.parameters():
                p.copy_(p.to(iteration.precision.dtype))


def rounds_state(iteration: TrainingIteration) -> None:
    standard_step(iteration)
    if iteration.low:
        for state in iteration.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    state[name] = value.to(iteration.precision.dtype).float()


def adds_gradients_up_low(iteration: TrainingIteration) -> None:
    """Accumulate a thousand equal micro-batches, with the sum in the low dtype."""
    torch.autograd.backward(forward(iteration) / 1000)
    for p in iteration.model.parameters():
        assert p.grad is not None
        one = p.grad.to(iteration.precision.dtype) if iteration.low else p.grad
        total = torch.zeros_like(one)
        for _ in range(1000):
            total += one
        p.grad = total.float()
    iteration.scaler.step(iteration.optimizer)


def steps_on_another_loss(iteration: TrainingIteration) -> None:
    """Lose a third of the gradient if autocast is on, in every dtype."""
    loss = forward(iteration)
    finish(iteration, loss * (2 / 3 if iteration.low else 1.0))


def overflows(iteration: TrainingIteration) -> None:
    finish(iteration, forward(iteration))
    if iteration.low and iteration.index == 4:
        with torch.no_grad():
            next(iteration.model.parameters()).mul_(float("inf"))


def gradients_are_garbage(iteration: TrainingIteration) -> None:
    finish(iteration, forward(iteration) * (1e8 if iteration.low else 1.0))


WRONG = {
    "clips_scaled_gradients": (clips_scaled_gradients, FP16, "step 0: .* round away", "clipped before scaler.unscale_"),
    "clips_with_the_usual_scale": (clips_a_little, FP16, "leaves the band of float32 at step 1 ", "clipped before"),
    "steps_past_the_scaler": (steps_past_the_scaler, FP16, r"on 0: .* past the scaler", r"scaler\.step\(optimizer\)"),
    "rounds_weights": (
        rounds_weights,
        BF16,
        r"step 0 of the run in bf16: a parameter",
        r"test_check_training.py:\d+ writes values that were rounded to bfloat16 into 0.weight",
    ),
    "rounds_state": (rounds_state, BF16, r"step 2 of the run in bf16: the optimizer's state", "low dtype"),
    "adds_gradients_up_low": (adds_gradients_up_low, BF16, r"leaves the band of float32 at step \d+ of", "accumulated"),
    "steps_on_another_loss": (
        steps_on_another_loss,
        BF16,
        r"leaves the band of float32 at step [1-5] of",
        "gradients of 0.667 times",
    ),
    "overflows": (overflows, BF16, r"leaves the band of float32 at step 5 of", "mul .*a constant of inf"),
    "gradients_are_garbage": (
        gradients_are_garbage,
        BF16,
        r"step \d",
        r"gradients of 1e\+0\d times .*: what the training step makes of them",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_mistake_is_named_with_its_likely_cause(wrong: str) -> None:
    train, precision, what, likely = WRONG[wrong]
    with pytest.raises(AmpFailure, match=what) as raised:
        run(train, precision=precision)
    assert raised.match(rf"likely .*{likely}")


def test_gradients_below_the_range_are_named() -> None:
    """Train fp16 without a suitable scale."""
    with pytest.raises(AmpFailure, match=r"step 0: \d+% of the gradients are exactly zero") as raised:
        run(does_not_scale, precision=FP16, optimizer=lambda p: torch.optim.SGD(p, lr=0.1 * 2.0**36))
    assert raised.match("the loss is not scaled")


def test_low_precision_loss_is_named() -> None:
    """Average over thousands in the low dtype, in which the sum is wrong."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = model(batch).square().flatten()
        total = losses[:1] * 0
        for index in range(len(losses)):
            total = total + losses[index]
        return total / len(losses)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    case = Case("summed", build, lambda: torch.randn(256, 8), loss)
    with pytest.raises(AmpFailure, match="leaves the band of float32 at step 0") as raised:
        run(case=case, steps=4, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    assert raised.match("forward itself computes too much in the low dtype")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cast_model_is_named(dtype: torch.dtype) -> None:
    def build() -> nn.Module:
        return mlp(width=32).build().to(dtype)

    case = replace(mlp(width=32), build=build, loss=lambda m, b: m(b["inputs"].to(dtype)).float().square().mean())
    with pytest.raises(AmpFailure, match=r"step 0 of the run in float32: a parameter or buffer") as raised:
        run(case=case)
    assert raised.match("the model is cast")


def test_training_with_tiny_steps_cannot_be_judged() -> None:
    with pytest.raises(AmpFailure, match="move the loss too little to see anything by"):
        run(optimizer=lambda p: torch.optim.SGD(p, lr=1e-6))


def test_zero_loss_cannot_be_judged() -> None:
    still = replace(mlp(), loss=lambda model, batch: model(batch["inputs"]).float().sum() * 0)
    with pytest.raises(AmpFailure, match="move the loss too little to see anything by"):
        run(case=still, steps=3)


def test_error_of_the_optimizer_is_not_attributed_to_the_scaler() -> None:
    case = Case(
        "sparse",
        lambda: nn.Sequential(nn.Embedding(4, 8, sparse=True), nn.Linear(8, 2)),
        lambda: torch.arange(4),
        lambda model, batch: model(batch).float().square().mean(),
    )
    run(case=case, optimizer=sgd)  # whose momentum is sparse, too
    for precision in (BF16, FP16):
        with pytest.raises(AmpFailure, match="step 0: the optimizer refuses the training step") as raised:
            run(case=case, precision=precision, optimizer=adamw, steps=3)
        assert raised.match("Adam does not support sparse gradients")


def test_diverging_training_cannot_be_judged() -> None:
    with pytest.raises(AmpFailure, match="does not stay finite in float32"):
        run(case=decoder(), optimizer=lambda p: torch.optim.SGD(p, lr=1e12), steps=8)


def _no_update(iteration: TrainingIteration) -> None:
    scaled: Any = iteration.scaler.scale(forward(iteration) * 2.0**20)
    scaled.backward()
    iteration.scaler.step(iteration.optimizer)


def test_missing_scaler_update_is_named() -> None:
    with pytest.raises(AmpFailure, match="step 0: GradScaler refuses the training step") as raised:
        run(_no_update, precision=FP16, optimizer=lambda p: torch.optim.SGD(p, lr=0.1 * 2.0**-20))
    assert raised.match("update")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 1}, "steps=1"),
        ({"train": lambda _: None}, "has no loss: it"),
        ({"case": Case("none", nn.Identity, lambda: torch.ones(1), lambda _m, b: b.sum())}, "no parameter"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    call: Callable[..., Any] = run
    with pytest.raises(AmpUsageError, match=words):
        call(**arguments)


def _without_region(iteration: TrainingIteration) -> None:
    iteration.optimizer.zero_grad()
    finish(iteration, iteration.loss())


def _own_region(iteration: TrainingIteration) -> None:
    iteration.optimizer.zero_grad()
    with torch.autocast("cpu", iteration.precision.dtype):
        loss = iteration.loss()
    finish(iteration, loss)


@BOTH
def test_missing_region_is_named(precision: Precision) -> None:
    """Both runs would be the same, and agree."""
    with pytest.raises(AmpFailure, match="the training step computes nothing under autocast") as raised:
        run(_without_region, precision=precision)
    assert "autocast is never on" in str(raised.value)


def _backward_inside(iteration: TrainingIteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        scaled: Any = iteration.scaler.scale(iteration.loss())
        scaled.backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@BOTH
def test_backward_inside_the_region_is_named(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="backward runs inside the region; it belongs outside") as raised:
        run(_backward_inside, precision=precision)
    assert f"autocast({precision.dtype_name}) is on where gradients are accumulated" in str(raised.value)


def _forgets_zero_grad(iteration: TrainingIteration) -> None:
    with iteration.autocast():
        loss = iteration.loss()
    finish(iteration, loss)


def test_missing_zero_grad_is_named() -> None:
    with pytest.raises(AmpFailure, match="iteration 1: gradients are added to those of the iteration before") as raised:
        run(_forgets_zero_grad, precision=FP16)
    assert raised.match(r"likely .*optimizer\.zero_grad\(\) is missing")
    assert raised.match(r"line +\S*test_check_training\.py:\d+")


@BOTH
def test_region_in_the_float32_run_is_named(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="the run in float32 is under autocast"):
        run(_own_region, precision=precision)


class Centred(nn.Module):
    """Layer whose output is centred by a buffer that each forward pass updates."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x).float()
        centred = y - self.centre
        self.centre.copy_((self.centre + y.detach().mean(0)) / 2)
        return centred


def test_buffer_that_a_skipped_step_has_updated_does_not_count_twice() -> None:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(32, 16) + 2.0, torch.randn(32, 8)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum")

    trajectory = run(
        case=Case("centred", Centred, batch, loss),
        precision=FP16,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    )
    assert trajectory.steps[0].skipped > 0
