"""Scalers over ranks: an overflow on one rank is skipped by all, and every rank has the same scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.failure import AmpFailure

from . import ranks_ddp, ranks_fsdp, ranks_tensor
from .expectations import expect_ranks_agree, expect_same, needs_streams, settings
from .models import realised
from .policies import POLICIES
from .programs import full, model_and_rows
from .ranks_fsdp import sharded, wrapped
from .ranks_tensor import parallel_layers
from .training import train_in_one_process


def _model(rank: Rank, settings: Mapping[str, Any]) -> nn.Module:
    model, _ = model_and_rows(rank, settings)
    kind = settings["parallel"]
    if kind == "fully_shard":
        return sharded(model, rank, {})  # type: ignore[no-any-return]
    if kind == "fsdp":
        return wrapped(model, rank, {})  # type: ignore[no-any-return]
    if kind == "tensor":
        return parallel_layers(model, rank, only=True)
    assert kind == "none"
    return model


def _scaler(rank: Rank, settings: Mapping[str, Any]) -> Any:
    keywords: Any = {"init_scale": 8.0, "growth_interval": settings.get("growth_interval", 100)}
    if settings["scaler"] == "sharded":
        import torch.distributed as dist
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device=rank.device.type, process_group=dist.group.WORLD, **keywords)
    return torch.amp.GradScaler(rank.device.type, **keywords)


def _local(gradient: Any) -> torch.Tensor:
    part: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part


def overflow(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run three iterations; in the second the shard of one rank gets an inf or NaN after backward.

    Return the scale after each, whether this rank's parameters moved, and the optimizer's count of steps.
    """
    parallel = _model(rank, settings)
    _, rows = model_and_rows(rank, {**settings, "seed": settings["seed"]})
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-2, foreach=settings.get("foreach", False))
    scaler = _scaler(rank, settings)
    scales, moved = [], []
    for iteration in range(3):
        optimizer.zero_grad()
        outputs = parallel(rows["inputs"])
        torch.autograd.backward(scaler.scale(full(outputs).square().mean()))
        if iteration == 1 and rank.number == settings["rank"]:
            _spoil(parallel, float(settings["value"]))
        before = [_local(p.detach()).clone() for p in parallel.parameters()]
        if settings.get("unscale"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        after = [_local(p.detach()) for p in parallel.parameters()]
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
    steps = {float(state["step"]) for state in optimizer.state.values()}
    finite = all(bool(_local(p.detach()).isfinite().all()) for p in parallel.parameters())
    return {"scales": scales, "moved": moved, "steps": sorted(steps), "finite": finite}


def _spoil(parallel: nn.Module, value: float) -> None:
    """Overwrite the last element of the first gradient of which this rank has a part."""
    parts = (_local(p.grad) for p in parallel.parameters() if p.grad is not None)
    chosen = next(part for part in parts if part.numel())
    with torch.no_grad():
        chosen.view(-1)[-1:] = value


def scales(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run iterations for which ``overflows`` names the rank that overflows, if any: the scale after each.

    Half way the scaler is saved, and a new one continues with its state.
    """
    parallel = _model(rank, settings)
    _, rows = model_and_rows(rank, settings)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3, foreach=False)
    scaler = _scaler(rank, settings)
    history = []
    plan = settings["overflows"]
    for iteration, at in enumerate(plan):
        if iteration == len(plan) // 2:
            state, scaler = scaler.state_dict(), _scaler(rank, {**settings, "growth_interval": 100})
            scaler.load_state_dict(state)
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale(full(parallel(rows["inputs"])).square().mean()))
        if at == rank.number:
            _spoil(parallel, float("inf"))
        scaler.step(optimizer)
        scaler.update()
        history.append(scaler.get_scale())
    return {"scales": history, "state": scaler.state_dict()}


_LONG = [pytest.mark.amp_long]
#: Each rank and each value in the ordinary tier, all combinations in the long one.
_WHERE = [
    pytest.param(at, value, id=f"rank {at}-{value}", marks=[] if (at, value) in {(1, "inf"), (0, "nan")} else _LONG)
    for at in (0, 1)
    for value in ("inf", "nan")
]
#: Ways of splitting a model, each with its scaler.
_SPLIT = {"fully_shard": "plain", "fsdp": "sharded", "tensor": "plain", "none": "sharded"}


def _needs_streams(amp: SuiteAmp, parallel: str) -> None:
    if parallel == "fully_shard":
        needs_streams(amp)


def _all_skip(amp: SuiteAmp, answers: list[dict[str, list[float]]], subject: str) -> None:
    """Raise AmpFailure unless every rank steps, skips and steps, backs off once, and stays finite."""
    expected = {"moved": [True, False, True], "scales": [8.0, 4.0, 4.0], "finite": True}
    for number, answer in enumerate(answers):
        actual = {key: answer[key] for key in expected}
        if actual != expected or answer["steps"] != [2.0]:
            raise AmpFailure(
                f"{subject} on {amp.target.id}: rank {number} does not step and skip like the others",
                label_before="rule",
                before=f"it moves, skips and moves: {expected}, and the optimizer has taken 2 steps",
                now=f"{actual}, steps {answer['steps']}",
                likely="found_inf is not reduced over ranks, or one rank ignores it",
            )


@pytest.mark.parametrize(("at", "value"), _WHERE)
@pytest.mark.parametrize("parallel", _SPLIT)
def test_an_overflow_in_one_shard_is_skipped_by_all(
    amp: SuiteAmp, ranks: RankGroup, parallel: str, at: int, value: str
) -> None:
    """Ranks of FSDP2, FSDP1, tensor parallel layers, and of processes that share only the scaler's group."""
    _needs_streams(amp, parallel)
    arguments = settings(amp, parallel=parallel, scaler=_SPLIT[parallel], rank=at, value=value)
    _all_skip(amp, ranks.ask(overflow, arguments), f"{_SPLIT[parallel]} scaler, {parallel}")


@pytest.mark.parametrize("parallel", _SPLIT)
def test_after_unscale_too(amp: SuiteAmp, ranks: RankGroup, parallel: str) -> None:
    """Ranks of a step that clips agree in ``unscale_``."""
    _needs_streams(amp, parallel)
    arguments = settings(amp, parallel=parallel, scaler=_SPLIT[parallel], rank=1, value="inf", unscale=True)
    _all_skip(amp, ranks.ask(overflow, arguments), f"{_SPLIT[parallel]} scaler, {parallel}, unscale_")


#: The rank on which an iteration overflows.
_OVERFLOWS = (None, None, 1, None, 0, None, None, None, 1, None, None, 0)


@pytest.mark.parametrize("parallel", _SPLIT)
def test_every_rank_has_the_same_scale(amp: SuiteAmp, ranks: RankGroup, parallel: str) -> None:
    """Growth and backoff agree for overflow on any rank, also if the state is saved and loaded in between."""
    _needs_streams(amp, parallel)
    expected, scale, clean = [], 8.0, 0
    for at in _OVERFLOWS:
        clean = 0 if at is not None else clean + 1
        scale *= 0.5 if at is not None else 2.0 if clean == 2 else 1.0
        clean %= 2
        expected.append(scale)
    arguments = settings(amp, parallel=parallel, scaler=_SPLIT[parallel], overflows=_OVERFLOWS, growth_interval=2)
    for number, answer in enumerate(ranks.ask(scales, arguments)):
        if answer["scales"] != expected or answer["state"]["_growth_tracker"] != clean:
            raise AmpFailure(
                f"{_SPLIT[parallel]} scaler, {parallel}, on {amp.target.id}: rank {number} has another scale",
                label_before="rule",
                before=f"after each iteration {expected}, then {clean} clean ones",
                now=f"{answer['scales']}, then {answer['state']['_growth_tracker']}",
                likely="found_inf is not reduced over ranks, or the tracker of one rank counts on its own",
            )


def test_a_scaler_that_is_not_told_of_others_skips_alone(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Prove that the test above can fail: a plain GradScaler in independent processes knows only of its own rank."""
    arguments = settings(amp, parallel="none", scaler="plain", rank=1, value="inf")
    answers = ranks.ask(overflow, arguments)
    assert [answer["moved"] for answer in answers] == [[True, True, True], [True, False, True]]


def test_shards_and_whole_gradients_together(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Train tensor parallel layers and a replicated layer norm with one optimizer and one scaler."""
    answers = ranks.ask(ranks_tensor.train, settings(amp, only=False))
    assert all(answer["moved"] == [True] * 4 for answer in answers)


def test_ddp_spreads_an_overflow_to_all_ranks(amp: SuiteAmp, ranks: RankGroup) -> None:
    """One rank's loss is infinite: all reduced gradients are non-finite, all ranks skip, and continue together."""
    arguments = settings(amp, overflow=True)
    answers = ranks.ask(ranks_ddp.train, arguments)
    for number, answer in enumerate(answers):
        if answer["moved"] != [True, False, True, True] or answer["scales"] != answers[0]["scales"]:
            raise AmpFailure(
                f"an overflow on rank 1 of {amp.target.id}: rank {number} does not skip the step, or alone",
                label_before="rule",
                before="under DDP all ranks step, skip, step and step, at one scale",
                now=f"rank {number} moved {answer['moved']}, scales {[row['scales'] for row in answers]}",
                likely="a rank steps in spite of found_inf, or its gradients were not reduced",
            )
    expect_ranks_agree(amp, answers, "weights", subject="DDP after an overflow")
    instance = realised(amp.config.seed, amp.device.torch_device)
    expected = train_in_one_process(instance.model, instance.batch, amp.device.torch_device, amp.dtype, arguments)
    expect_same(amp, answers[0]["weights"], expected["weights"], subject="DDP after an overflow")


@pytest.mark.parametrize("policy", ["low, reduced in float32", "autocast"])
def test_fully_shard_spreads_an_overflow_to_all_ranks(amp: SuiteAmp, ranks: RankGroup, policy: str) -> None:
    """Repeat with FSDP2: the reduce-scatter carries one rank's infinity to the owner of the shard."""
    _needs_streams(amp, "fully_shard")
    rule = POLICIES[policy]
    answers = ranks.ask(ranks_fsdp.train, settings(amp, policy=rule.requested(amp), region=rule.region, overflow=True))
    for answer in answers:
        assert answer["moved"] == [True, False, True, True]
        assert answer["scales"] == answers[0]["scales"]
        assert answer["kept"] == ["float32"]
    expect_ranks_agree(amp, answers, "weights", subject="FSDP2 after an overflow")
