"""Activation checkpointing recomputes in the region of forward: the gradients have the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .checkpoints import REENTRANT, Block, expect_same, gradients
from .state import OTHER, State, expect_state, product_dtype


@pytest.fixture
def model(amp: SuiteAmp) -> nn.Sequential:
    """Return a model with dropout, so that the recomputation has to draw the same mask."""
    layers = nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 8)
    return nn.Sequential(*layers).to(amp.device.torch_device)


#: Ways to call ``torch.utils.checkpoint``; the reentrant one does not forward keywords to the function.
CALLED: dict[str, Callable[[Block, torch.Tensor], torch.Tensor]] = {
    "non-reentrant": lambda block, batch: checkpoint(block, batch, use_reentrant=False),
    "reentrant": lambda block, batch: checkpoint(block, batch, use_reentrant=True),
    "by keyword": lambda block, batch: checkpoint(block, input=batch, use_reentrant=False),
    "without checks": lambda block, batch: checkpoint(block, batch, use_reentrant=False, determinism_check="none"),
}


@pytest.mark.parametrize(
    ("called", "inside"),
    [
        pytest.param(name, inside, id=f"{name}, backward {'inside' if inside else 'outside'}")
        for name in CALLED
        for inside in (False, True)
    ],
)
def test_gradients_are_those_without_a_checkpoint(
    amp: SuiteAmp, model: nn.Sequential, called: str, *, inside: bool
) -> None:
    if called == "by keyword":
        model.eval()  # the next test covers dropout
    plain = gradients(amp, model, model, inside=inside)
    actual = gradients(amp, model, lambda batch: CALLED[called](model, batch), inside=inside)
    expect_same(amp, plain, actual)


def test_dropout_of_what_is_handed_over_by_keyword(amp: SuiteAmp, model: nn.Sequential) -> None:
    plain = gradients(amp, model, model)
    expect_same(amp, plain, gradients(amp, model, lambda batch: CALLED["by keyword"](model, batch)))


@REENTRANT
def test_a_use_under_no_grad_inside_the_block(amp: SuiteAmp, model: nn.Sequential, *, reentrant: bool) -> None:
    """The recomputation sees a different cast cache than forward did (pytorch/pytorch#141896)."""

    def block(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = model(batch)
        return model(batch) + target  # type: ignore[no-any-return]

    plain = gradients(amp, model, block)
    actual = gradients(amp, model, lambda batch: checkpoint(block, batch, use_reentrant=reentrant))
    expect_same(amp, plain, actual)


@REENTRANT
@pytest.mark.parametrize("region", ["plain", "other dtype", "no cache", "disabled"])
def test_recomputation_runs_in_the_region_of_forward(amp: SuiteAmp, region: str, *, reentrant: bool) -> None:
    """Recompute with enabled flag, dtype and cache of forward, though backward is called outside any region."""
    keywords = {
        "plain": amp.autocast,
        "other dtype": lambda: amp.autocast(dtype=OTHER[amp.dtype]),
        "no cache": lambda: amp.autocast(cache_enabled=False),
        "disabled": lambda: amp.autocast(enabled=False),
    }
    observed: list[tuple[bool, str, bool, str]] = []

    def block(batch: torch.Tensor) -> torch.Tensor:
        state, product = State.now(amp.device.type), product_dtype(amp.device.torch_device)
        observed.append((state.enabled, dtype_name(state.dtype), state.cache, dtype_name(product)))
        return batch * batch  # saves tensors for backward, so that every kind of checkpoint recomputes it

    batch = torch.randn(4, 8, device=amp.device.torch_device, requires_grad=True)
    with keywords[region]():
        result = checkpoint(block, batch, use_reentrant=reentrant)
    before = State.now(amp.device.type)
    result.sum().backward()
    kind = "reentrant" if reentrant else "non-reentrant"
    amp.observe(f"recomputation, {kind}, {region}", [list(row) for row in observed], kind="state")
    expect_state(
        amp,
        f"in the recomputation of a block ({kind}, {region})",
        observed,
        [observed[0]] * 2,
        likely="torch.utils.checkpoint does not re-enter forward's region, or not with all of its settings",
    )
    expect_state(amp, "after backward", State.now(amp.device.type), before, likely="the recomputation leaks its region")


@pytest.mark.amp(devices=["cuda", "xpu"])
@REENTRANT
def test_recomputation_runs_in_the_regions_of_both_devices(amp: SuiteAmp, *, reentrant: bool) -> None:
    """Blocks of an accelerator that also use the CPU recompute in both regions."""
    observed: list[tuple[bool, torch.dtype, bool, torch.dtype]] = []

    def block(batch: torch.Tensor) -> torch.Tensor:
        here, cpu = State.now(amp.device.type), State.now("cpu")
        observed.append((here.enabled, here.dtype, cpu.enabled, cpu.dtype))
        return batch * batch

    batch = torch.randn(4, 8, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast(), torch.autocast("cpu", OTHER[amp.dtype]):
        result = checkpoint(block, batch, use_reentrant=reentrant)
    result.sum().backward()
    expected = [(True, amp.dtype, True, OTHER[amp.dtype])] * 2
    expect_state(
        amp, "in the recomputation, of both devices", observed, expected, likely="one of the regions is forgotten"
    )


@REENTRANT
def test_a_region_inside_the_block_is_recomputed(amp: SuiteAmp, model: nn.Sequential, *, reentrant: bool) -> None:
    """Recompute a block that enters its own region, called in none."""

    def block(batch: torch.Tensor) -> torch.Tensor:
        with amp.autocast():
            return model(batch).float()  # type: ignore[no-any-return]

    def run(forward: Block) -> list[torch.Tensor]:
        torch.manual_seed(amp.config.seed)
        batch = torch.randn(4, 8).to(amp.device.torch_device).requires_grad_()
        model.zero_grad()
        result = forward(batch)
        result.square().sum().backward()
        actual = [batch.grad, *(parameter.grad for parameter in model.parameters())]
        return [result.detach(), *(gradient.clone() for gradient in actual if gradient is not None)]

    expect_same(amp, run(block), run(lambda batch: checkpoint(block, batch, use_reentrant=reentrant)))


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_segments_of_a_sequence_are_recomputed_in_the_region(
    amp: SuiteAmp, model: nn.Sequential, *, reentrant: bool
) -> None:
    """``checkpoint_sequential`` without dropout, since segments draw their masks in a different order."""
    model.eval()

    def block(batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint_sequential(model, 2, batch, use_reentrant=reentrant)
        return result

    plain = gradients(amp, model, model)
    expect_same(amp, plain, gradients(amp, model, block))
