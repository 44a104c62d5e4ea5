"""Collectives called inside a region: data of every dtype arrives unchanged, sums round once, gradients are exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.failure import AmpFailure

from .expectations import expect_same, settings
from .models import SIZE, Tensors
from .programs import low_dtype, on_cpu

NUMBERS = 64
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)


def numbers(seed: int, number: int, dtype: torch.dtype) -> torch.Tensor:
    """Return one rank's values: not representable in a lower precision, and small enough to be summed over ranks."""
    generator = torch.Generator().manual_seed(100 * seed + number)
    drawn = torch.randn(NUMBERS, dtype=torch.float64, generator=generator)
    return (drawn * 2.0**45).to(dtype) if dtype is torch.int64 else drawn.to(dtype)


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    dist.broadcast(x, src=1)
    return x


def _all_reduce(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def _largest(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def _all_gather(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    dist.all_gather(parts, x)
    return parts


def _all_gather_into_tensor(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(SIZE * x.numel())
    dist.all_gather_into_tensor(out, x)
    return out


def _reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Reduce, scatter and gather again, so that every rank has the whole result."""
    part = x.new_empty(x.numel() // SIZE)
    dist.reduce_scatter_tensor(part, x)
    return _all_gather_into_tensor(part)


def _all_to_all(x: torch.Tensor) -> torch.Tensor:
    """Exchange halves, and gather the results of all ranks on every rank."""
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return _all_gather_into_tensor(received)


def _reduce(x: torch.Tensor) -> torch.Tensor:
    dist.reduce(x, dst=0)
    dist.broadcast(x, src=0)
    return x


def _send(x: torch.Tensor) -> torch.Tensor:
    """Send to the other rank, and return the values received from it."""
    received = torch.empty_like(x)
    first, second = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
    for call in (first, second):
        call(x if call is dist.send else received, 1 - dist.get_rank())
    return _all_gather_into_tensor(received)


def _scatter(x: torch.Tensor) -> torch.Tensor:
    part = x.new_empty(x.numel() // SIZE)
    dist.scatter(part, [chunk.clone() for chunk in x.chunk(SIZE)] if dist.get_rank() == 0 else None, src=0)
    return _all_gather_into_tensor(part)


def _gather(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    dist.gather(x, parts if dist.get_rank() == 0 else None, dst=0)
    for part in parts:
        dist.broadcast(part, src=0)
    return parts


def _object(x: torch.Tensor) -> torch.Tensor:
    objects: list[Any] = [{"x": x.cpu()} if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(objects, src=0)
    received: torch.Tensor = objects[0]["x"]
    return received


def _objects(x: torch.Tensor) -> list[torch.Tensor]:
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"x": x.cpu()})
    return [entry["x"] for entry in objects]


def _sharded(x: torch.Tensor) -> torch.Tensor:
    """Shard the values of rank 0, and gather them again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(x.device.type, (SIZE,))
    return distribute_tensor(x, mesh, [Shard(0)]).full_tensor()


#: Each collective by name, and a function that computes its result from the values of both ranks.
COLLECTIVES: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[..., torch.Tensor]]] = {
    "broadcast": (_broadcast, lambda _, second: second),
    "all_reduce": (_all_reduce, torch.add),
    "all_reduce, MAX": (_largest, torch.maximum),
    "all_gather": (_all_gather, lambda *both: torch.cat(both)),
    "all_gather_into_tensor": (_all_gather_into_tensor, lambda *both: torch.cat(both)),
    "reduce_scatter_tensor": (_reduce_scatter, torch.add),
    "all_to_all_single": (_all_to_all, lambda *both: torch.cat([x.chunk(SIZE)[n] for n in range(SIZE) for x in both])),
    "reduce": (_reduce, torch.add),
    "send": (_send, lambda first, second: torch.cat([second, first])),
    "scatter": (_scatter, lambda first, _: first),
    "gather": (_gather, lambda *both: torch.cat(both)),
    "broadcast_object_list": (_object, lambda first, _: first),
    "all_gather_object": (_objects, lambda *both: torch.cat(both)),
    "DTensor": (_sharded, lambda first, _: first),
}


def collect(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of each collective on the ranks' values, by dtype."""
    results: dict[str, Tensors] = {}
    for name, (call, _) in COLLECTIVES.items():
        results[name] = {}
        for dtype in DTYPES:
            x = numbers(settings["seed"], rank.number, dtype).to(rank.device)
            with rank.autocast(low_dtype(settings)):
                result = call(x)
            results[name][str(dtype)] = torch.cat(result) if isinstance(result, list) else result
        results[name] = on_cpu(results[name])
    return results


def factors(number: int) -> torch.Tensor:
    """Return the weights of a rank's results in its loss; they are not representable in low precision."""
    return torch.arange(NUMBERS) / 100 + number


def differentiate(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return results and gradients of the differentiable collectives of ``torch.distributed.nn``."""
    from torch.distributed import nn as untyped

    functions: Any = untyped

    weights = factors(rank.number).to(rank.device)
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "all_reduce": functions.functional.all_reduce,
        "all_gather": lambda x: torch.stack(functions.functional.all_gather(x)).sum(0),
    }
    results: dict[str, Tensors] = {}
    for name, call in calls.items():
        x = numbers(settings["seed"], rank.number, torch.float32).to(rank.device).requires_grad_()
        with rank.autocast(low_dtype(settings)):
            result = call(x)
        torch.autograd.backward((result * weights).sum())
        assert x.grad is not None
        results[name] = on_cpu({"result": result, "gradient": x.grad})
    return results


def test_every_bit_arrives(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Send float32, float64, fp16, bf16 and integers: autocast casts no message, and each sum is rounded once."""
    for number, answer in enumerate(ranks.ask(collect, settings(amp))):
        for name, (_, expected) in COLLECTIVES.items():
            for dtype in DTYPES:
                both = [numbers(amp.config.seed, rank, dtype) for rank in range(SIZE)]
                actual, correct = answer[name][str(dtype)], expected(*both)
                if actual.dtype is not dtype or not torch.equal(actual, correct):
                    raise AmpFailure(
                        f"{name} of {dtype} in a region of {amp.target.id} has different bits on rank {number}",
                        label_before="rule",
                        before=f"{dtype}, norm {float(correct.double().norm()):.6g}",
                        now=f"{actual.dtype}, error {float((actual.double() - correct.double()).abs().max()):.3g}",
                        likely="a region casts a message before or after it is sent",
                    )


def test_gradients_go_back_through_them(amp: SuiteAmp, ranks: RankGroup) -> None:
    """``torch.distributed.nn`` sums the incoming gradients of all ranks, in float32."""
    sent = [numbers(amp.config.seed, rank, torch.float32) for rank in range(SIZE)]
    first, second = (factors(rank) for rank in range(SIZE))
    expected = {"result": sent[0] + sent[1], "gradient": first + second}
    for number, answer in enumerate(ranks.ask(differentiate, settings(amp))):
        for name, gradient in answer.items():
            expect_same(amp, gradient, expected, subject=f"{name} on rank {number}")
