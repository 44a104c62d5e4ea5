"""Every kind of network on two ranks that have the same batch: outputs and gradients are those of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, Realised, lacks_lstm_kernel, wider_zoo, zoo
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.numerics import run_step
from pytest_amp.run.targets import Target

from .expectations import expect_ranks_agree, expect_same, needs_streams, settings
from .models import deterministic, plain
from .programs import low_dtype, on_cpu

#: Every case by name.
CASES = {case.name: case for case in (*zoo(), *wider_zoo())}


def _wrapped(model: nn.Module, rank: Rank, kind: str) -> nn.Module:
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        # Every rank has the same batch, and therefore the same buffers, which need no synchronization.
        return DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded: Any = fully_shard(model, mesh=init_device_mesh(rank.device.type, (rank.size,)))
    return sharded  # type: ignore[no-any-return]


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of a case: its outputs, and gradients by name."""
    case: Case = CASES[settings["case"]]
    instance = case.realise(seed=settings["seed"]).on(rank.device)
    model = _wrapped(instance.model, rank, settings["parallel"])
    here = Realised(model, instance.batch)
    with deterministic():
        outcome = run_step(case, here, lambda: rank.autocast(low_dtype(settings)), seed=settings["seed"])
    gradients = {plain(name): value for name, value in outcome.gradients.items() if value is not None}
    return {
        "outputs": on_cpu(outcome.outputs),
        "gradients": on_cpu(gradients),
    }


def _cases(target: Target) -> Iterator[object]:
    """Yield cases that have parameters and kernels on this machine; the wider zoo is marked for the long tier."""
    ordinary = {case.name for case in zoo()}
    for name, case in CASES.items():
        lacking = name == "lstm" and lacks_lstm_kernel(target.device.type, target.precision.name)
        if not lacking and any(True for _ in case.build().parameters()):
            yield pytest.param(name, id=name, marks=[] if name in ordinary else [pytest.mark.amp_long])


@pytest.mark.parametrize("parallel", ["ddp", "fully_shard"])
@pytest.mark.amp_parametrize("name", _cases)
def test_a_step_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, name: str, parallel: str) -> None:
    """Compare bit for bit: the mean of two equal gradients is the gradient."""
    if parallel == "fully_shard":
        needs_streams(amp)
    subject = f"{name}, {parallel}"
    answers = ranks.ask(step, settings(amp, case=name, parallel=parallel))
    expect_ranks_agree(amp, answers, "gradients", subject=subject)
    case = CASES[name]
    instance = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    with deterministic():
        alone = run_step(case, instance, amp.autocast, seed=amp.config.seed)
    gradients = {name: value for name, value in alone.gradients.items() if value is not None}
    expect_same(amp, answers[0]["outputs"], dict(alone.outputs), subject=subject)
    expect_same(amp, answers[0]["gradients"], gradients, subject=subject)
