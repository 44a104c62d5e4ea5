"""Queries of the autocast state, such as ``is_autocast_enabled``, inside and outside regions; exit restores it."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import FAKE_TYPES
from pytest_amp.precision import dtype_name

from .state import OTHER, State, expect_dtype, expect_state, product_dtype

#: Ways to enter a region, as functions of the fixture.
REGIONS: dict[str, Callable[[SuiteAmp], contextlib.AbstractContextManager[None]]] = {
    "plain": lambda amp: amp.autocast(),
    "disabled": lambda amp: amp.autocast(enabled=False),
    "no cache": lambda amp: amp.autocast(cache_enabled=False),
    "other dtype": lambda amp: amp.autocast(dtype=OTHER[amp.dtype]),
}
ENABLED = {"plain": True, "disabled": False, "no cache": True, "other dtype": True}


class Interrupted(Exception):
    """Raised by the tests inside regions."""


def _inside(amp: SuiteAmp, region: str, before: State) -> State:
    dtype = OTHER[amp.dtype] if region == "other dtype" else amp.dtype
    return State(ENABLED[region], dtype, region != "no cache", before.depth + 1)


@pytest.mark.amp(fake=True)
@pytest.mark.parametrize("region", REGIONS)
def test_queries_answer_what_the_region_says(amp: SuiteAmp, region: str) -> None:
    """``is_autocast_enabled(device)``, ``get_autocast_dtype(device)``, ``is_autocast_cache_enabled()``, nesting."""
    before = State.now(amp.device.type)
    with REGIONS[region](amp):
        actual = State.now(amp.device.type)
    amp.observe(
        f"queries in a region, {region}", [actual.enabled, dtype_name(actual.dtype), actual.cache], kind="state"
    )
    expect_state(
        amp, f"in a region ({region})", actual, _inside(amp, region, before), likely="__enter__ sets it wrongly"
    )


@pytest.mark.amp(fake=True)
@pytest.mark.parametrize("ends", ["leaves", "raises"])
@pytest.mark.parametrize("region", REGIONS)
def test_exit_restores_the_state(amp: SuiteAmp, region: str, ends: str) -> None:
    before = State.now(amp.device.type)
    with contextlib.suppress(Interrupted), REGIONS[region](amp):
        if ends == "raises":
            raise Interrupted
    actual = State.now(amp.device.type)
    expect_state(amp, f"after a region ({region}) that {ends}", actual, before, likely="__exit__ does not restore it")
    with amp.device.tensors():
        found_dtype = product_dtype(amp.device.torch_device)
    assert found_dtype is torch.float32, f"after a region that {ends} products are still {dtype_name(found_dtype)}"


@pytest.mark.amp(fake=True)
@pytest.mark.parametrize("inner", REGIONS)
@pytest.mark.parametrize("outer", REGIONS)
def test_exit_restores_the_outer_region(amp: SuiteAmp, outer: str, inner: str) -> None:
    """Exit restores the state of the outer region, not the defaults; also when the inner one raises."""
    with REGIONS[outer](amp):
        before = State.now(amp.device.type)
        with REGIONS[inner](amp):
            pass
        left = State.now(amp.device.type)
        with contextlib.suppress(Interrupted), REGIONS[inner](amp):
            raise Interrupted
        raised = State.now(amp.device.type)
    where = f"in a region ({outer}) after an inner one ({inner})"
    expect_state(amp, where, left, before, likely="__exit__ restores defaults, not what it found")
    expect_state(amp, f"{where} that raised", raised, before, likely="__exit__ is not run for an exception")


@pytest.mark.amp(fake=True)
@pytest.mark.parametrize("kind", [Interrupted, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_an_exception_through_three_regions_restores_each(amp: SuiteAmp, kind: type[BaseException]) -> None:
    before, on_the_way = State.now(amp.device.type), []
    try:
        with amp.autocast():
            outer = State.now(amp.device.type)
            try:
                with amp.autocast(enabled=False), amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
                    raise kind
            finally:
                on_the_way.append(State.now(amp.device.type))
    except kind:
        on_the_way.append(State.now(amp.device.type))
    likely = "__exit__ does not restore what its __enter__ found"
    expect_state(amp, "outwards through three regions", on_the_way, [outer, before], likely=likely)


@pytest.mark.amp(fake=True)
def test_exit_restores_what_was_set_by_hand(amp: SuiteAmp) -> None:
    """State that was set without a region is restored, too."""
    device_type = amp.device.type
    default = torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)  # noqa: FBT003  # torch's own signature
    torch.set_autocast_dtype(device_type, OTHER[default])
    try:
        before = State.now(device_type)
        with amp.autocast(dtype=default, enabled=False):
            pass
        after = State.now(device_type)
    finally:
        torch.set_autocast_enabled(device_type, False)  # noqa: FBT003  # torch's own signature
        torch.set_autocast_dtype(device_type, default)
        torch.clear_autocast_cache()
    expect_state(amp, "set directly, after a region", after, before, likely="__exit__ restores defaults")


@pytest.mark.amp(fake=True)
def test_a_region_touches_no_other_device_type(amp: SuiteAmp) -> None:
    supported = [kind for kind in ("cpu", *FAKE_TYPES) if torch.amp.is_autocast_available(kind)]
    assert amp.device.type in supported
    before = _states(supported, amp.device.type)
    with amp.autocast(dtype=OTHER[amp.dtype]):
        inside = _states(supported, amp.device.type)
    likely = "autocast state is kept per device type, and one region wrote another's"
    expect_state(amp, "of the other device types", inside, before, likely=likely)


def _states(types: list[str], but: str) -> dict[str, tuple[bool, torch.dtype]]:
    return {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in types if kind != but}


@pytest.mark.amp(fake=True)
def test_the_query_without_a_device_means_cuda(amp: SuiteAmp) -> None:
    """``torch.is_autocast_enabled()`` is about CUDA alone, on every device (pytorch/pytorch#110966)."""
    assert not torch.is_autocast_enabled()
    with amp.autocast():
        actual = torch.is_autocast_enabled()
    amp.observe("is_autocast_enabled() in a region", actual, kind="state")
    expected = amp.device.type == "cuda"
    expect_state(amp, "according to the query without a device", actual, expected, likely="the query's meaning changed")


@pytest.mark.amp(fake=True)
def test_the_default_dtype_is_documented(amp: SuiteAmp) -> None:
    """bfloat16 on the CPU, float16 on the accelerators (docstring of ``torch.autocast``)."""
    expected = torch.bfloat16 if amp.device.type == "cpu" else torch.float16
    if amp.device.type in ("cpu", *FAKE_TYPES):
        actual = torch.get_autocast_dtype(amp.device.type)
        expect_dtype(amp, "default autocast dtype", actual, expected, likely="the back end's default changed")


def test_a_region_without_a_dtype_takes_the_current_one(amp: SuiteAmp) -> None:
    """Use the default outside, and the dtype that ``torch.set_autocast_dtype`` or an outer region set."""
    device_type = amp.device.type
    default = torch.get_autocast_dtype(device_type)
    with torch.autocast(device_type):
        actual = torch.get_autocast_dtype(device_type), product_dtype(amp.device.torch_device)
    assert actual == (default, default), f"without a dtype a region computes in {actual}, not in {default}"
    with amp.autocast(), torch.autocast(device_type):
        actual = torch.get_autocast_dtype(device_type), product_dtype(amp.device.torch_device)
    assert actual == (amp.dtype, amp.dtype), f"an inner region without a dtype computes in {actual}"


#: Device types with autocast (aten/src/ATen/autocast_mode.h, _AUTOCAST_SUPPORTED_DEVICES), independent of this machine;
#: mtia and maia have it since torch 2.7 or later.
AVAILABLE = ("cpu", "cuda", "xpu", "mps", "ipu", "hpu", "xla")


@pytest.mark.amp(fake=True)
def test_autocast_is_available(amp: SuiteAmp) -> None:
    """Each device type with autocast is available: tests of several devices leave out unavailable ones."""
    lacking = [kind for kind in (*AVAILABLE, amp.device.type) if not torch.amp.is_autocast_available(kind)]
    expect_state(amp, "that is said not to be there", lacking, [], likely="a device type has lost its autocast")
    assert not torch.amp.is_autocast_available("meta"), "meta tensors have autocast rules now"


def test_a_device_type_without_autocast_is_refused(amp: SuiteAmp) -> None:
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'meta'"):
        torch.autocast("meta", amp.dtype)
    with pytest.raises(RuntimeError, match="Expected one of cpu"):
        torch.autocast("no_such_device", amp.dtype)
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        torch.autocast(amp.device.torch_device, amp.dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32], ids=dtype_name)
def test_a_dtype_that_is_no_autocast_dtype_disables_the_region(amp: SuiteAmp, dtype: torch.dtype) -> None:
    """The region warns and lists the dtypes that the device supports."""
    with pytest.warns(UserWarning, match="(?s)target dtype is not supported. Disabling autocast.*bfloat16"):
        region = torch.autocast(amp.device.type, dtype)
    before = State.now(amp.device.type)
    with region:
        assert not torch.is_autocast_enabled(amp.device.type)
        assert product_dtype(amp.device.torch_device) is torch.float32
    assert State.now(amp.device.type) == before


def test_entering_warns_of_nothing(amp: SuiteAmp) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast(amp.device.type, amp.dtype), torch.autocast(amp.device.type, enabled=False):
            pass


@pytest.mark.amp(fake=True)
def test_a_new_thread_does_not_inherit_the_region(amp: SuiteAmp) -> None:
    """State is thread-local (docstring of ``torch.autocast``): a thread starts with the defaults."""
    observed: list[State] = []

    def look() -> None:
        observed.append(State.now(amp.device.type))

    _in_a_thread(look)
    with amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
        _in_a_thread(look)
    outside, inside = observed
    assert outside.depth == 0
    likely = "autocast state is no longer thread-local: data loaders and servers change what they compute"
    expect_state(amp, "of a thread started in a region", inside, outside, likely=likely)


def test_a_new_thread_computes_in_float32(amp: SuiteAmp) -> None:
    """A thread that enters a region itself computes in that region's dtype."""
    observed: list[torch.dtype] = []

    def compute() -> None:
        observed.append(product_dtype(amp.device.torch_device))
        with amp.autocast(dtype=OTHER[amp.dtype]):
            observed.append(product_dtype(amp.device.torch_device))
        observed.append(product_dtype(amp.device.torch_device))

    with amp.autocast():
        _in_a_thread(compute)
        observed.append(product_dtype(amp.device.torch_device))
    amp.observe("products of a thread started in a region", [dtype_name(dtype) for dtype in observed], kind="dtype")
    expected = [torch.float32, OTHER[amp.dtype], torch.float32, amp.dtype]
    expect_state(amp, "of a thread and of its starter", observed, expected, likely="threads share autocast state")


@pytest.mark.amp(fake=True)
def test_a_region_of_another_thread_is_not_seen(amp: SuiteAmp) -> None:
    entered, looked = threading.Event(), threading.Event()

    def stay() -> None:
        with amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
            entered.set()
            looked.wait(timeout=10)

    before = State.now(amp.device.type)
    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(timeout=10)
    actual = State.now(amp.device.type)
    looked.set()
    thread.join(timeout=10)
    expect_state(amp, "while another thread is in a region", actual, before, likely="threads share autocast state")


def _in_a_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(timeout=10)
