"""Generators and asyncio tasks with an open region, which belongs to the thread and not to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import torch

from pytest_amp.amp import SuiteAmp

from .state import OTHER, State, expect_state, product_dtype


def _product(amp: SuiteAmp) -> torch.dtype:
    return product_dtype(amp.device.torch_device)


@contextmanager
def _restored(amp: SuiteAmp) -> Iterator[State]:
    """Restore the state afterwards: these tests show leaks of it."""
    before, default = State.now(amp.device.type), torch.get_autocast_dtype(amp.device.type)
    yield before
    torch.set_autocast_enabled(amp.device.type, before.enabled)
    torch.set_autocast_dtype(amp.device.type, default)
    torch.set_autocast_cache_enabled(before.cache)


@pytest.mark.parametrize("ends", ["exhausted", "closed", "dropped", "raised into"])
def test_a_generators_region_ends_with_it(amp: SuiteAmp, ends: str) -> None:
    def generate() -> Generator[torch.dtype]:
        with amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
            yield _product(amp)
            yield _product(amp)

    before = State.now(amp.device.type)
    generator = generate()
    assert next(generator) is OTHER[amp.dtype]
    if ends == "exhausted":
        assert list(generator) == [OTHER[amp.dtype]]
    elif ends == "closed":
        generator.close()
    elif ends == "raised into":
        with pytest.raises(KeyError):
            generator.throw(KeyError)
    del generator
    after = State.now(amp.device.type)
    expect_state(amp, f"after a generator that was {ends}", after, before, likely="its region is not left")


def test_a_suspended_generator_leaves_its_consumer_alone(amp: SuiteAmp) -> None:
    def generate() -> Generator[int]:
        with amp.autocast():
            yield 1

    with _restored(amp):
        generator = generate()
        next(generator)
        actual = _product(amp)
        generator.close()
    assert actual is torch.float32, f"the consumer of a generator that holds a region computes in {actual}"


def test_generators_that_take_turns_leave_the_state_as_it_was(amp: SuiteAmp) -> None:
    """Without nesting, the first to start closes first, and the second restores the state inside the first."""

    def generate() -> Generator[int]:
        with amp.autocast():
            yield 1

    with _restored(amp) as before:
        first, second = generate(), generate()
        next(first)
        next(second)
        first.close()
        second.close()
        after = State.now(amp.device.type)
    assert after == before


def test_a_context_manager_of_ones_own_is_a_region(amp: SuiteAmp) -> None:
    """A ``yield`` inside ``with`` works in a ``contextmanager`` and in an ``asynccontextmanager``."""

    @contextmanager
    def region() -> Iterator[None]:
        with amp.autocast():
            yield

    @asynccontextmanager
    async def asynchronous() -> AsyncIterator[None]:
        with amp.autocast():
            yield

    async def run() -> torch.dtype:
        async with asynchronous():
            return _product(amp)

    before = State.now(amp.device.type)
    with region():
        assert _product(amp) is amp.dtype
    assert asyncio.run(run()) is amp.dtype
    assert State.now(amp.device.type) == before


def test_a_task_that_waits_for_nothing_is_a_region_like_any(amp: SuiteAmp) -> None:
    """Run tasks one after the other, each with its own dtype."""

    async def request(dtype: torch.dtype) -> torch.dtype:
        with amp.autocast(dtype=dtype):
            return _product(amp)

    async def serve() -> list[torch.dtype]:
        return [*await asyncio.gather(*(request(dtype) for dtype in (amp.dtype, OTHER[amp.dtype], amp.dtype)))]

    before = State.now(amp.device.type)
    assert asyncio.run(serve()) == [amp.dtype, OTHER[amp.dtype], amp.dtype]
    assert State.now(amp.device.type) == before


def test_a_region_goes_on_after_await(amp: SuiteAmp) -> None:
    """A region survives ``await``, as long as no other task enters one meanwhile."""

    async def request() -> list[torch.dtype]:
        with amp.autocast():
            before = _product(amp)
            await asyncio.sleep(0)
            return [before, _product(amp)]

    assert asyncio.run(request()) == [amp.dtype] * 2


def test_work_handed_to_a_thread_is_outside(amp: SuiteAmp) -> None:
    """``asyncio.to_thread`` copies context variables; autocast's state is not one of them."""

    async def request() -> list[torch.dtype]:
        with amp.autocast():
            return [_product(amp), await asyncio.to_thread(_product, amp)]

    assert asyncio.run(request()) == [amp.dtype, torch.float32]


def test_a_waiting_task_leaves_the_others_alone(amp: SuiteAmp) -> None:
    """A handler without a region must compute in float32, in a server whose other handlers await inside a region."""

    async def low(entered: asyncio.Event, done: asyncio.Event) -> None:
        with amp.autocast():
            entered.set()
            await done.wait()

    async def plain(entered: asyncio.Event, done: asyncio.Event) -> torch.dtype:
        await entered.wait()
        actual = _product(amp)
        done.set()
        return actual

    async def serve() -> torch.dtype:
        events = asyncio.Event(), asyncio.Event()
        return (await asyncio.gather(low(*events), plain(*events)))[1]

    with _restored(amp):
        actual = asyncio.run(serve())
    assert actual is torch.float32


def test_interleaved_tasks_leave_the_state_as_it_was(amp: SuiteAmp) -> None:
    async def request(turns: int) -> None:
        with amp.autocast():
            for _ in range(turns):
                await asyncio.sleep(0)

    async def serve() -> None:
        await asyncio.gather(request(1), request(2))

    with _restored(amp) as before:
        asyncio.run(serve())
        after = State.now(amp.device.type)
    assert after == before


def test_a_decorated_coroutine_function_runs_outside(amp: SuiteAmp) -> None:
    """The region covers only the call that creates the coroutine, as for generators: torch's current behaviour."""

    @torch.autocast(amp.device.type, amp.dtype)
    async def request() -> torch.dtype:
        return _product(amp)

    before = State.now(amp.device.type)
    assert asyncio.run(request()) is torch.float32
    assert State.now(amp.device.type) == before
