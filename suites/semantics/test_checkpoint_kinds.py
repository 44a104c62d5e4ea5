"""Nested and selective checkpoints, with and without rng state, with offloaded saved tensors."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as checkpoints
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_calls

from .checkpoints import REENTRANT, expect_same, gradients
from .state import OTHER, State, product_dtype


@pytest.fixture
def model(amp: SuiteAmp) -> nn.Sequential:
    """Return two blocks with dropout in each."""
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 8)) for _ in range(2)]
    return nn.Sequential(*blocks).to(amp.device.torch_device)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # within a reentrant one, under no_grad
@REENTRANT
def test_a_checkpoint_in_a_checkpoint(amp: SuiteAmp, model: nn.Sequential, *, reentrant: bool) -> None:
    """The inner checkpoint is recomputed within the recomputation of the outer one."""
    if reentrant:
        model.eval()  # dropout's masks are drawn in a different order

    def block(batch: torch.Tensor) -> torch.Tensor:
        first = checkpoint(model[0], batch, use_reentrant=reentrant)
        return checkpoint(model[1], first, use_reentrant=reentrant)  # type: ignore[no-any-return]

    plain = gradients(amp, model, model)
    actual = gradients(amp, model, lambda batch: checkpoint(block, batch, use_reentrant=reentrant))
    expect_same(amp, plain, actual, what="a checkpoint in a checkpoint")


@REENTRANT
def test_a_block_of_several_outputs(amp: SuiteAmp, model: nn.Sequential, *, reentrant: bool) -> None:
    """Each output gets its gradient, and an unused one does not affect the others."""

    def block(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = model[0](batch)
        second = model[1](first)
        return first, second.float() * 3, second

    def used(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return outputs[0].float() + outputs[1]

    plain = gradients(amp, model, lambda batch: used(block(batch)))
    actual = gradients(amp, model, lambda batch: used(checkpoint(block, batch, use_reentrant=reentrant)))
    expect_same(amp, plain, actual, what="a checkpoint of several outputs")


def _policy(choice: CheckpointPolicy, *_: Any, **__: Any) -> CheckpointPolicy:
    return choice


def _products(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    retained = operator in {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    return CheckpointPolicy.MUST_SAVE if retained else CheckpointPolicy.PREFER_RECOMPUTE


POLICIES: dict[str, Any] = {
    "save all": functools.partial(_policy, CheckpointPolicy.MUST_SAVE),
    "save nothing": functools.partial(_policy, CheckpointPolicy.MUST_RECOMPUTE),
    "save products": _products,
    "by name": [torch.ops.aten.addmm.default],
}


@pytest.mark.parametrize("policy", POLICIES)
def test_selective_checkpoints_recompute_in_the_region(amp: SuiteAmp, model: nn.Sequential, policy: str) -> None:
    """``create_selective_checkpoint_contexts``: saved and recomputed tensors come from one region."""
    model.eval()
    observed: list[str] = []

    def block(batch: torch.Tensor) -> torch.Tensor:
        observed.append(dtype_name(product_dtype(amp.device.torch_device)))
        return model(batch)  # type: ignore[no-any-return]

    def contexts() -> Any:
        # Looked up here, because models call the function that a project may have replaced.
        return checkpoints.create_selective_checkpoint_contexts(POLICIES[policy])

    plain = gradients(amp, model, model)
    actual = gradients(amp, model, lambda batch: checkpoint(block, batch, use_reentrant=False, context_fn=contexts))
    expect_same(amp, plain, actual, what=f"a selective checkpoint ({policy})")
    assert observed == [dtype_name(amp.dtype)] * 2


def test_saved_products_are_not_computed_again(amp: SuiteAmp, model: nn.Sequential) -> None:
    """Under autocast as without, a policy's saved tensor is identified by its place among the calls."""
    model.eval()

    def contexts() -> Any:
        return checkpoints.create_selective_checkpoint_contexts(_products)

    def products(*, selective: bool) -> int:
        chosen = contexts if selective else checkpoints.noop_context_fn
        batch = torch.randn(4, 8, device=amp.device.torch_device)
        with amp.autocast():
            result = checkpoint(model, batch, use_reentrant=False, context_fn=chosen)
            loss = result.float().square().sum()
        with recorded_calls() as calls:
            loss.backward()
        return sum(call.operator == "aten::addmm" for call in calls)

    assert products(selective=False) > 0
    assert products(selective=True) == 0, "saved products are computed again"


@pytest.mark.parametrize("rng", [True, False], ids=["rng kept", "rng free"])
@REENTRANT
def test_rng_state_and_region_are_separate(amp: SuiteAmp, model: nn.Sequential, *, rng: bool, reentrant: bool) -> None:
    """``preserve_rng_state=False`` changes the dropout mask of the recomputation, and nothing else."""
    if not rng:
        model.eval()
    plain = gradients(amp, model, model)
    actual = gradients(
        amp, model, lambda batch: checkpoint(model, batch, use_reentrant=reentrant, preserve_rng_state=rng)
    )
    expect_same(amp, plain, actual, what=f"a checkpoint with preserve_rng_state={rng}")


@pytest.mark.parametrize("early", [True, False], ids=["early stop", "to the end"])
def test_stopping_early_changes_nothing(amp: SuiteAmp, model: nn.Sequential, *, early: bool) -> None:
    """``set_checkpoint_early_stop`` ends the recomputation after the last required tensor, by an exception."""
    plain = gradients(amp, model, model)
    before = State.now(amp.device.type)
    with checkpoints.set_checkpoint_early_stop(early):
        actual = gradients(amp, model, lambda batch: checkpoint(model, batch, use_reentrant=False))
    expect_same(amp, plain, actual, what=f"set_checkpoint_early_stop({early})")
    assert State.now(amp.device.type) == before


@pytest.mark.parametrize("segments", [1, 2])
@REENTRANT
def test_segments_keep_the_dtype_of_another_region(
    amp: SuiteAmp, model: nn.Sequential, segments: int, *, reentrant: bool
) -> None:
    """``checkpoint_sequential`` in a region of the other dtype without cache is recomputed in that dtype."""
    model.eval()
    observed: list[tuple[str, bool]] = []

    class Look(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            observed.append((dtype_name(product_dtype(amp.device.torch_device)), torch.is_autocast_cache_enabled()))
            return batch * batch

    layers = nn.Sequential(Look(), model[0], Look(), model[1])
    batch = torch.randn(4, 8, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
        result = checkpoints.checkpoint_sequential(layers, segments, batch, use_reentrant=reentrant)
    result.float().sum().backward()
    # The last segment is not checkpointed.
    assert len(observed) == 2 + (segments - 1)
    assert set(observed) == {(dtype_name(OTHER[amp.dtype]), False)}


@pytest.mark.parametrize("where", ["save_on_cpu", "hooks"])
def test_what_is_saved_keeps_its_dtype_on_the_way(amp: SuiteAmp, model: nn.Sequential, where: str) -> None:
    """``save_on_cpu`` and ``saved_tensors_hooks`` receive autocast's tensors, and return them unchanged."""
    packed: list[torch.dtype] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.dtype)
        return tensor.clone()

    hooks = {
        "save_on_cpu": torch.autograd.graph.save_on_cpu,
        "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    }

    def block(batch: torch.Tensor) -> torch.Tensor:
        with hooks[where]():
            return model(batch)  # type: ignore[no-any-return]

    plain = gradients(amp, model, model)
    expect_same(amp, plain, gradients(amp, model, block), what=where)
    if where == "hooks":
        amp.observe("dtypes of what is saved", ", ".join(sorted({dtype_name(dtype) for dtype in packed})), kind="dtype")
        assert amp.dtype in packed


def test_a_block_that_raises_leaves_the_region_as_it_was(amp: SuiteAmp) -> None:
    """Raise in forward, and in the recomputation."""
    calls: list[int] = []

    def block(batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ArithmeticError
        return batch * batch

    for reentrant in (True, False):
        calls.clear()
        batch = torch.randn(4, 8, device=amp.device.torch_device, requires_grad=True)
        with amp.autocast():
            result = checkpoint(block, batch, use_reentrant=reentrant)
        before = State.now(amp.device.type)
        with pytest.raises(ArithmeticError):
            result.sum().backward()
        assert State.now(amp.device.type) == before, "a recomputation that raised leaves its region on"
