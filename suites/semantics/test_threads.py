"""Regions and threads: a region belongs to its thread alone, however that was created or reused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error
from pytest_amp.torch_private import recorded_calls

from .state import OTHER, State, expect_state, product_dtype
from .users import OPERATORS

Job = Callable[[], State]


def _timer(job: Job) -> State:
    observed: list[State] = []
    timer = threading.Timer(0, lambda: observed.append(job()))
    timer.start()
    timer.join()
    return observed[0]


def _executor(job: Job) -> State:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(job).result()


def _mapped(job: Job) -> State:
    with ThreadPoolExecutor(1) as pool:
        return next(iter(pool.map(lambda _: job(), [0])))


def _thread_pool(job: Job) -> State:
    with ThreadPool(1) as pool:
        return pool.apply(job)


WAYS: dict[str, Callable[[Job], State]] = {
    "Timer": _timer,
    "ThreadPoolExecutor.submit": _executor,
    "ThreadPoolExecutor.map": _mapped,
    "ThreadPool": _thread_pool,
}


@pytest.mark.amp(fake=True)
@pytest.mark.parametrize("way", WAYS)
def test_work_for_another_thread_is_not_in_the_region(amp: SuiteAmp, way: str) -> None:
    """Work submitted inside a region runs with the defaults (docstring of ``torch.autocast``: thread-local)."""
    outside = WAYS[way](lambda: State.now(amp.device.type))
    with amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
        inside = WAYS[way](lambda: State.now(amp.device.type))
        before = State.now(amp.device.type)
    assert not outside.enabled
    assert outside.depth == 0
    expect_state(amp, f"of a {way}'s thread, used in a region", inside, outside, likely="threads inherit regions")
    assert before.enabled, "handing work to a thread ends the region"


def test_a_worker_forgets_the_region_of_its_last_job(amp: SuiteAmp) -> None:
    """Run jobs on one thread: in a region, raising inside one, and then a query of the state."""

    def job(*, fails: bool) -> torch.dtype:
        with amp.autocast():
            if fails:
                raise KeyError
            return product_dtype(amp.device.torch_device)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(State.now, amp.device.type).result()
        assert pool.submit(job, fails=False).result() is amp.dtype
        assert pool.submit(State.now, amp.device.type).result() == first
        assert isinstance(pool.submit(job, fails=True).exception(), KeyError)
        last = pool.submit(State.now, amp.device.type).result()
    expect_state(amp, "of a pool's thread after a job that raised", last, first, likely="a job's region outlives it")


def test_replicas_in_threads_compute_what_one_thread_computes(amp: SuiteAmp) -> None:
    """Run one model as DataParallel does: a thread for each part of the batch, the region entered in each."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(amp.device.torch_device)
    parts = [torch.randn(4, 8, device=amp.device.torch_device) for _ in range(4)]
    together = threading.Barrier(len(parts), timeout=60)

    def replica(part: torch.Tensor, *, wait: bool = True) -> torch.Tensor:
        if wait:
            together.wait()
        with amp.autocast():
            return model(part)  # type: ignore[no-any-return]

    with ThreadPoolExecutor(len(parts)) as pool:
        actual = list(pool.map(replica, parts))
    torch.cat(actual).float().square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    expected = [replica(part, wait=False) for part in parts]
    torch.cat(expected).float().square().sum().backward()
    for left, right in zip(actual, expected, strict=True):
        assert left.dtype is amp.dtype
        assert torch.equal(left, right)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        # Each thread casts the weight, one thread casts it once: the sum over the parts is rounded before or after.
        assert torch.allclose(gradient, parameter.grad, rtol=8 * amp.precision.u, atol=8 * amp.precision.u)


def test_a_region_where_only_some_threads_enter_one(amp: SuiteAmp) -> None:
    """Replicas without a region compute in float32 while another replica is in a region."""
    matrix = torch.randn(8, 8, device=amp.device.torch_device)
    together = threading.Barrier(2, timeout=60)

    def replica(enabled: bool) -> torch.dtype:  # noqa: FBT001  # map passes it by position
        with amp.autocast(enabled=enabled):
            together.wait()
            result = (matrix @ matrix).dtype
            together.wait()
        return result

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(replica, [True, False])) == [amp.dtype, torch.float32]


def test_backward_in_another_thread_is_outside_every_region(amp: SuiteAmp) -> None:
    """Backward of a graph that was recorded in a region runs in a different thread; products stay low-precision."""
    layer = nn.Linear(8, 8, bias=False).to(amp.device.torch_device)
    observed: list[bool] = []
    with amp.autocast():
        result = layer(torch.randn(4, 8, device=amp.device.torch_device))
        result.register_hook(lambda _: observed.append(torch.is_autocast_enabled(amp.device.type)))
        loss = result.float().square().sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        assert torch.is_autocast_enabled(amp.device.type)
    assert observed == [False], f"backward in another thread finds autocast on: {observed}"
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32
    assert torch.equal(layer.weight.grad, layer.weight.grad.to(amp.dtype).float()), "backward multiplied in float32"


def _run_in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_thread_of_another_dtype_gets_a_copy_of_its_own(amp: SuiteAmp) -> None:
    """Serve requests of one model in bf16 and in fp16."""
    layer = nn.Linear(8, 8, bias=False).to(amp.device.torch_device)
    batch = torch.randn(4, 8, device=amp.device.torch_device)
    observed: list[object] = []

    def serve() -> None:
        with amp.autocast(dtype=OTHER[amp.dtype]):
            try:
                observed.append(layer(batch).dtype)
            except RuntimeError as error:
                observed.append(error)

    with amp.autocast():
        layer(batch)
        _run_in_thread(serve)
    assert observed == [OTHER[amp.dtype]]


def test_a_thread_that_leaves_its_region_drops_nobody_elses_copies(amp: SuiteAmp) -> None:
    """Otherwise a training loop would cast its weights again whenever a data thread leaves a region."""
    layer = nn.Linear(8, 24, bias=False).to(amp.device.torch_device)
    batch = torch.randn(4, 8, device=amp.device.torch_device)

    def pass_through() -> None:
        with amp.autocast():
            pass

    with recorded_calls() as calls, amp.autocast():
        layer(batch)
        _run_in_thread(pass_through)
        layer(batch)
    assert sum(call.operator == "aten::_to_copy" and call.tensors[:1] == ("float32[24, 8]",) for call in calls) == 1


def test_a_decorated_function_serves_two_threads_at_once(amp: SuiteAmp) -> None:
    """The first thread to enter restores its own state, though the other one is still inside."""
    inside, leave = threading.Event(), threading.Event()

    @torch.autocast(amp.device.type, amp.dtype)
    def forward(*, wait: bool) -> None:
        if wait:
            inside.set()
            leave.wait(timeout=60)

    after: list[bool] = []

    def first() -> None:
        forward(wait=True)
        after.append(torch.is_autocast_enabled(amp.device.type))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(timeout=60)
    with amp.autocast():
        forward(wait=False)
        leave.set()
        thread.join()
    assert after == [False], "a thread that was never in a region is in one after a decorated call"


class _Rows(Dataset[torch.Tensor]):
    """Rows that record whether autocast was on where they were created, and the dtype of a product there."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        dtype = product_dtype(torch.device("cpu"))
        return torch.tensor([float(torch.is_autocast_enabled(self.device_type)), dtype.itemsize])


def _rows(amp: SuiteAmp, **keywords: Any) -> list[list[float]]:
    loader = DataLoader(_Rows(amp.device.type), batch_size=2, **keywords)
    with amp.autocast():
        before = State.now(amp.device.type)
        iterator = iter(loader)
        state_at_start = State.now(amp.device.type)
        rows = [row for part in iterator for row in part.tolist()]
        after = State.now(amp.device.type)
    expect_state(amp, "once a DataLoader has started", state_at_start, before, likely="iterating leaves the region")
    expect_state(amp, "after a DataLoader", after, before, likely="iterating leaves the region")
    return rows


def _row_in_the_region(amp: SuiteAmp) -> list[float]:
    """Return the row of a CPU product, which only a region of the CPU makes low."""
    return [1.0, float(amp.dtype.itemsize if amp.device.type == "cpu" else torch.float32.itemsize)]


def test_a_loader_in_this_process_loads_in_the_region(amp: SuiteAmp) -> None:
    assert _rows(amp) == [_row_in_the_region(amp)] * 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on: the process has threads
def test_a_loaders_forked_workers_are_in_the_region(amp: SuiteAmp) -> None:
    """A fork copies the iterating thread with its region: torch's current behaviour, documented by this test."""
    rows = _rows(amp, num_workers=1, multiprocessing_context="fork")
    amp.observe("in a forked DataLoader worker, autocast is on", rows[0][0] == 1.0, kind="state")
    assert rows == [_row_in_the_region(amp)] * 4


@pytest.mark.amp_long
def test_a_loaders_spawned_workers_are_outside(amp: SuiteAmp) -> None:
    assert _rows(amp, num_workers=1, multiprocessing_context="spawn") == [[0.0, 4.0]] * 4


def test_operators_on_several_threads_compute_in_the_region(amp: SuiteAmp) -> None:
    """Use several intra-op threads, where other tests use one: the same dtypes, and the same values up to rounding."""
    weights = {name: torch.randn(shape).to(amp.device.torch_device) for name, (shape, _) in OPERATORS.items()}
    actual = []
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with amp.autocast():
                actual.append({name: use(weights[name]) for name, (_, use) in OPERATORS.items()})
    finally:
        torch.set_num_threads(before)
    one, two = actual
    assert {name: output.dtype for name, output in two.items()} == dict.fromkeys(OPERATORS, amp.dtype)
    off = {name: relative_error(two[name], one[name]) for name in OPERATORS}
    assert max(off.values()) <= 8 * amp.precision.u, f"two threads compute something else than one: {off}"
