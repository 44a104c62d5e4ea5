"""Models and loops for the tests of ``amp.check``; lines of wrong ones end in ``# wrong: <name>``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.scaler import Iteration

Batch = dict[str, Tensor]


def points() -> Batch:
    x = torch.randn(48, 12)
    return {"x": x, "y": x[:, :3].argmax(-1), "at": torch.arange(700, 748)}


class Turned(nn.Module):
    """Linear layer, a function of its output and the places, and a second layer."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(12, 32), nn.Linear(32, 3), function

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        output: Tensor = self.last(self.function(self.first(x), at))
        return output


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"], batch["at"]).float(), batch["y"])


def turned(function: Callable[[Tensor, Tensor], Tensor]) -> Case:
    return Case("turned", lambda: Turned(function), points, loss_of)


RATES: Tensor = 1000.0 ** -(torch.arange(32) / 32)


def by_low_angles(x: Tensor, at: Tensor) -> Tensor:
    angles = at.to(x.dtype)[:, None] * RATES.to(x.dtype)  # wrong: low_angles
    return x * angles.cos()


def by_angles(x: Tensor, at: Tensor) -> Tensor:
    angles = at.float()[:, None] * RATES
    return x * angles.cos().to(x.dtype)


def by_nothing(x: Tensor, _at: Tensor) -> Tensor:
    return functional.silu(x)


def mean_in_the_low_dtype(model: nn.Module, batch: Batch) -> Tensor:
    errors = (model(batch["x"], batch["at"]).float() - batch["x"][:, :3]).square() + 3
    mean: Tensor = errors.half().mean()  # wrong: low_mean
    return mean


class Product(torch.autograd.Function):
    """Product with a branch for low dtypes that loses a tenth."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0]
        if gradient.dtype is torch.float32:
            return gradient @ weight, gradient.mT @ x
        return gradient @ weight.to(gradient.dtype), gradient.mT @ x.to(gradient.dtype) * 0.9  # wrong: low_branch


class Multiplied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 12) / 4)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor, _at: Tensor) -> Tensor:
        product: Any = Product
        output: Tensor = self.last(functional.silu(product.apply(x, self.weight)))
        return output


def multiplied() -> Case:
    return Case("multiplied", Multiplied, points, loss_of)


def forward_in_a_region(iteration: Iteration) -> Tensor:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        logits: Tensor = iteration.model(iteration.batch["x"], iteration.batch["at"])
        return functional.cross_entropy(logits, iteration.batch["y"])


def finish(iteration: Iteration) -> None:
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def back(tensor: Any) -> None:
    tensor.backward()


def marked(name: str) -> set[int]:
    """Return the lines of this file that a message about ``name`` may name."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(f"# wrong: {name}")}


# Loops


def usual(iteration: Iteration) -> None:
    loss = forward_in_a_region(iteration)
    back(iteration.scaler.scale(loss))
    finish(iteration)


def without_a_scaler(iteration: Iteration) -> None:
    forward_in_a_region(iteration).backward()  # type: ignore[no-untyped-call]  # wrong: no_scaler
    iteration.optimizer.step()  # wrong: no_scaler


def past_the_scaler(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    iteration.scaler.unscale_(iteration.optimizer)
    iteration.optimizer.step()  # wrong: past_the_scaler
    iteration.scaler.update()


def with_its_own_scaler(iteration: Iteration) -> None:
    scaler = torch.amp.GradScaler("cpu")  # wrong: own_scaler
    back(scaler.scale(forward_in_a_region(iteration)))
    scaler.step(iteration.optimizer)
    scaler.update()


def without_scaling(iteration: Iteration) -> None:
    loss: Any = forward_in_a_region(iteration)
    loss.backward()  # wrong: not_scaled
    finish(iteration)


def with_an_unscaled_part(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    decay: Any = sum(weight.square().sum() for weight in iteration.model.parameters())
    (0.001 * decay).backward()  # wrong: unscaled_part
    finish(iteration)


def clipping_early(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    nn.utils.clip_grad_value_(iteration.model.parameters(), 0.01)  # wrong: clipped_early
    finish(iteration)


def clipping_in_hooks(iteration: Iteration) -> None:
    parameters: Any = iteration.model.parameters()
    handles = [p.register_hook(lambda grad: grad.clamp(-0.01, 0.01)) for p in parameters]  # wrong: clipped_in_hooks
    usual(iteration)
    for handle in handles:
        handle.remove()


def clipping_after_accumulation(iteration: Iteration) -> None:
    def clip(parameter: Any) -> None:
        nn.utils.clip_grad_value_([parameter], 0.01)  # wrong: clipped_after_accumulation

    parameters: Any = iteration.model.parameters()
    handles = [p.register_post_accumulate_grad_hook(clip) for p in parameters]
    usual(iteration)
    for handle in handles:
        handle.remove()


def unscaling_twice(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    iteration.scaler.unscale_(iteration.optimizer)
    iteration.scaler.unscale_(iteration.optimizer)  # wrong: unscaled_twice
    finish(iteration)


def without_update(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    iteration.scaler.step(iteration.optimizer)  # wrong: no_update


def without_zeroing(iteration: Iteration) -> None:  # wrong: no_zeroing
    with iteration.autocast():
        loss = iteration.loss()
    back(iteration.scaler.scale(loss))
    finish(iteration)


def without_a_region(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    loss = iteration.loss()  # wrong: no_region
    back(iteration.scaler.scale(loss))
    finish(iteration)


def backward_inside(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss: Any = iteration.scaler.scale(iteration.loss())
        loss.backward()  # wrong: backward_inside
    finish(iteration)


def setting_the_scale(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update(2.0**15)  # wrong: set_scale


def repairing_gradients(iteration: Iteration) -> None:
    back(iteration.scaler.scale(forward_in_a_region(iteration)))
    for parameter in iteration.model.parameters():
        if parameter.grad is not None:  # wrong: repaired
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)  # wrong: repaired
    finish(iteration)


WRONG_LOOPS: dict[str, tuple[Callable[[Iteration], None], str]] = {
    "no_scaler": (without_a_scaler, "has no scaler"),
    "past_the_scaler": (past_the_scaler, "past the scaler"),
    "own_scaler": (with_its_own_scaler, "a GradScaler of its own"),
    "not_scaled": (without_scaling, "the loss is not scaled"),
    "unscaled_part": (with_an_unscaled_part, "a part of the gradients is not scaled"),
    "clipped_early": (clipping_early, "depend on the scale"),
    "clipped_in_hooks": (clipping_in_hooks, "depend on the scale"),
    "clipped_after_accumulation": (clipping_after_accumulation, "depend on the scale"),
    "unscaled_twice": (unscaling_twice, "unscale_ is called 2 times in an iteration"),
    "no_update": (without_update, "calls scaler.update 0 times"),
    "set_scale": (setting_the_scale, "the scale does not follow the rule"),
    "repaired": (repairing_gradients, "a step with an overflow is taken"),
    "no_zeroing": (without_zeroing, "gradients are added to those of the iteration before"),
    "no_region": (without_a_region, "computes nothing under autocast"),
    "backward_inside": (backward_inside, "backward runs inside the region"),
}
