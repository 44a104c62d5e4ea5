"""One scaler with several optimizers: each skips for itself, the scale is common."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory


@dataclass(frozen=True)
class Pair:
    """Two parameters with an optimizer each, one loss and one scaler."""

    scaler: torch.amp.GradScaler
    parameters: tuple[nn.Parameter, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]

    def backward(self, bad: int | None = None) -> None:
        """Set gradients of 1, times the scale; an inf in those of parameter ``bad``."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.scaler.scale(torch.stack([p.sum() for p in self.parameters]).sum()).backward()
        if bad is not None:
            gradient = self.parameters[bad].grad
            assert gradient is not None
            gradient[0] = INF

    @property
    def values(self) -> list[float]:
        """Return the second element of each parameter, which has no planted inf."""
        return [p[1].item() for p in self.parameters]


@pytest.fixture
def pair(amp: SuiteAmp, amp_scaler: ScalerFactory) -> Pair:
    """Return both parameters at 1, with learning rate 0.5 and scale 8."""
    parameters = tuple(nn.Parameter(torch.ones(3, device=amp.device.torch_device)) for _ in range(2))
    return Pair(amp_scaler(init_scale=8.0), parameters, tuple(torch.optim.SGD([p], lr=0.5) for p in parameters))


@pytest.mark.parametrize("bad", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "in reverse"])
@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_ then step"])
def test_only_the_optimizer_that_overflowed_skips(
    amp: SuiteAmp, pair: Pair, bad: int, order: tuple[int, int], *, explicit: bool
) -> None:
    """The common scale backs off, once."""
    pair.backward(bad)
    if explicit:
        for i in order:
            pair.scaler.unscale_(pair.optimizers[i])
    for i in order:
        pair.scaler.step(pair.optimizers[i])
    pair.scaler.update()
    expected = [1.0 if i == bad else 0.5 for i in range(2)]
    if pair.values != expected or pair.scaler.get_scale() != 4.0:
        raise AmpFailure(
            f"an overflow of one of two optimizers on {amp.target.id} was attributed to the other, or to both",
            label_before="rule",
            before=f"parameters {expected}, scale 4.0",
            now=f"parameters {pair.values}, scale {pair.scaler.get_scale()}",
            likely="found_inf is not kept per optimizer (_per_optimizer_states in torch/amp/grad_scaler.py)",
        )


def test_an_overflow_of_either_backs_off_once(pair: Pair) -> None:
    """Both may overflow, too: one update, one backoff."""
    pair.backward(0)
    gradient = pair.parameters[1].grad
    assert gradient is not None
    gradient[0] = INF
    for optimizer in pair.optimizers:
        pair.scaler.step(optimizer)
    pair.scaler.update()
    assert pair.values == [1.0, 1.0]
    assert pair.scaler.get_scale() == 4.0


def test_stages_are_kept_per_optimizer(pair: Pair) -> None:
    """Unscaling one leaves the other's gradients scaled, and its stage unchanged."""
    pair.backward()
    pair.scaler.unscale_(pair.optimizers[0])
    gradients = [p.grad for p in pair.parameters]
    assert [g[0].item() for g in gradients if g is not None] == [1.0, 8.0]
    pair.scaler.unscale_(pair.optimizers[1])
    pair.scaler.step(pair.optimizers[0])
    with pytest.raises(RuntimeError, match="already been called"):
        pair.scaler.step(pair.optimizers[0])
    pair.scaler.step(pair.optimizers[1])
    pair.scaler.update()
    assert pair.values == [0.5, 0.5]


def test_an_optimizer_that_sits_out_changes_nothing(pair: Pair) -> None:
    """Stepping only one of two is allowed; the tracker counts updates, not steps."""
    pair.scaler.set_growth_interval(2)
    for _ in range(2):
        pair.backward()
        pair.scaler.step(pair.optimizers[0])
        pair.scaler.update()
    assert pair.values == [0.0, 1.0]
    assert pair.scaler.get_scale() == 16.0


def test_an_overflow_that_only_unscale_saw_backs_off(pair: Pair) -> None:
    """An optimizer that was unscaled and not stepped still counts in ``update``."""
    pair.backward(1)
    pair.scaler.unscale_(pair.optimizers[1])
    pair.scaler.step(pair.optimizers[0])
    pair.scaler.update()
    assert pair.values == [0.5, 1.0]
    assert pair.scaler.get_scale() == 4.0


def test_two_losses_with_one_scaler(pair: Pair) -> None:
    """Run two backwards at one scale, through shared parameters, as in torch's amp examples."""
    first, second = pair.parameters
    losses = [(first * 2).sum(), (first * second).sum()]
    for loss in losses:
        pair.scaler.scale(loss).backward(retain_graph=True)
    for optimizer in pair.optimizers:
        pair.scaler.step(optimizer)
    pair.scaler.update()
    assert pair.values == [1 - 0.5 * 3, 1 - 0.5 * 1]


@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_ then step"])
def test_a_clean_update_counts_once(pair: Pair, *, explicit: bool) -> None:
    """The growth interval counts updates, however many optimizers were checked."""
    pair.scaler.set_growth_interval(3)
    scales = []
    for _ in range(4):
        pair.backward()
        for optimizer in pair.optimizers:
            if explicit:
                pair.scaler.unscale_(optimizer)
            pair.scaler.step(optimizer)
        pair.scaler.update()
        scales.append(pair.scaler.get_scale())
    assert scales == [8.0, 8.0, 16.0, 16.0]
