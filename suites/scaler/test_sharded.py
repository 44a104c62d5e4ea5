"""ShardedGradScaler of FSDP, in a process group of one: the same scaler, with found-inf reduced over ranks.

One process receives no overflow of another rank; the tests show that nothing else differs from GradScaler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.torch_private import found_infs

from .training import INF, NAN, ScalerFactory, Training, training

pytestmark = [
    pytest.mark.amp(devices=["cpu", "cuda"]),
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="this torch is built without gloo"
    ),
]


#: Groups that were destroyed. Up to torch 2.7 the last owner that releases a group waits, with the GIL held, for its
#: threads, and a thread may wait for the GIL to release a tensor (pytorch/pytorch#154976, #56297): a deadlock.
#: The groups are released at Python's exit, when their threads are idle.
_DESTROYED_GROUPS: list[object] = []


@pytest.fixture
def sharded(amp: SuiteAmp) -> Iterator[Callable[..., torch.amp.GradScaler]]:
    """Return a factory of ShardedGradScalers in a gloo group of this process alone."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    store: Any = vars(dist)["HashStore"]()  # missing in torch.distributed's lists of names
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    _DESTROYED_GROUPS.append(dist.group.WORLD)

    def make(**keywords: float) -> torch.amp.GradScaler:
        return ShardedGradScaler(device=amp.device.type, process_group=dist.group.WORLD, **keywords)  # type: ignore[arg-type]

    try:
        yield make
    finally:
        dist.destroy_process_group()


def _trace(run: Training) -> list[object]:
    plan = [None, None, None, INF, None, NAN, NAN, None, None]
    return [run.iterate(bad) for bad in plan] + run.parameter.detach().flatten().tolist()


def test_it_is_the_plain_scaler(
    amp: SuiteAmp, amp_scaler: ScalerFactory, sharded: Callable[..., torch.amp.GradScaler]
) -> None:
    """Compare scale, tracker and parameters through growth and overflow."""
    settings = {"init_scale": 8.0, "growth_interval": 2}
    plain, other = (_trace(training(amp, factory(**settings))) for factory in (amp_scaler, sharded))
    if plain != other:
        raise AmpFailure(
            "ShardedGradScaler in a group of one process differs from GradScaler",
            label_before="rule",
            before=str(plain),
            now=str(other),
            likely="its own unscale_ or _amp_update_scale_cpu_ (torch/distributed/fsdp/sharded_grad_scaler.py)",
        )


def test_it_refuses_in_the_same_words(amp: SuiteAmp, sharded: Callable[..., torch.amp.GradScaler]) -> None:
    run = training(amp, sharded(init_scale=8.0))
    with pytest.raises(AssertionError, match="Attempted unscale_ but _scale is None"):
        run.scaler.unscale_(run.optimizer)
    run.backward()
    run.scaler.unscale_(run.optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer since the last update"):
        run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    with pytest.raises(RuntimeError, match="is being called after step"):
        run.scaler.unscale_(run.optimizer)


def test_a_rank_without_gradients_is_not_refused(amp: SuiteAmp, sharded: Callable[..., torch.amp.GradScaler]) -> None:
    """A rank without a shard of any parameter still takes part in the reduction (pytorch/pytorch#99174)."""
    run = training(amp, sharded(init_scale=8.0))
    run.scaler.scale(torch.ones((), device=amp.device.torch_device))
    run.scaler.step(run.optimizer)
    run.scaler.update()
    assert run.state == (8.0, 1)


def test_it_takes_float16_gradients(amp: SuiteAmp, sharded: Callable[..., torch.amp.GradScaler]) -> None:
    """Shards are in the low dtype; GradScaler refuses them."""
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float16, device=amp.device.torch_device))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.5), sharded(init_scale=8.0)
    scaler.scale(torch.ones((), device=amp.device.torch_device))
    for gradient, moved in ((8.0, 0.5), (INF, 0.5)):
        parameter.grad = torch.full_like(parameter, gradient)
        scaler.step(optimizer)
        scaler.update()
        assert parameter.tolist() == [moved] * 3
    assert scaler.get_scale() == 4.0


def test_a_scaled_loss_keeps_its_dtype(amp: SuiteAmp, sharded: Callable[..., torch.amp.GradScaler]) -> None:
    """Also a low-precision loss keeps its dtype; GradScaler returns it in float32."""
    assert (
        sharded(init_scale=8.0).scale(torch.ones((), dtype=amp.dtype, device=amp.device.torch_device)).dtype
        is amp.dtype
    )


def test_growth_stops_at_the_largest_finite_scale(amp: SuiteAmp, sharded: Callable[..., torch.amp.GradScaler]) -> None:
    run = training(amp, sharded(init_scale=2.0**127, growth_interval=1))
    run.plant(2.0**-127)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    assert run.state == (2.0**127, 0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_duplicates_that_overflow_together_are_found(
    amp: SuiteAmp, sharded: Callable[..., torch.amp.GradScaler]
) -> None:
    """Rows of a sparse float16 gradient are summed before they are checked (pytorch/pytorch#35810)."""
    table = nn.Parameter(torch.ones(4, 2, dtype=torch.float16, device=amp.device.torch_device))
    optimizer = torch.optim.SGD([table], lr=0.5)
    for value, overflows in ((8.0, False), (40_000.0, True)):
        scaler = sharded(init_scale=8.0)
        scaler.scale(torch.ones((), device=table.device))
        rows = torch.tensor([[1, 1, 3]], device=table.device)
        values = torch.full((3, 2), value, dtype=torch.float16, device=table.device)
        table.grad = torch.sparse_coo_tensor(rows, values, table.shape)
        scaler.unscale_(optimizer)
        assert list(found_infs(scaler, optimizer).values()) == [overflows]
        if not overflows:
            assert table.grad.coalesce().values().tolist() == [[2.0, 2.0], [1.0, 1.0]]
