"""``torch.autocast`` on every device type: the state that it sets, that it restores, and that it leaves unchanged.

On fake devices the plugin builds regions from the state setters; these tests use the class that users enter.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import FAKE_TYPES, DeviceKind

from .releases import RELEASE
from .state import OTHER, State, expect_state, product_dtype

pytestmark = pytest.mark.amp(fake=True)

KEYWORDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "disabled": {"enabled": False},
    "no cache": {"cache_enabled": False},
    "disabled, no cache": {"enabled": False, "cache_enabled": False},
}
EACH = pytest.mark.parametrize("kind", KEYWORDS)


class Interrupted(Exception):
    """Raised by the tests inside regions."""


def _switches_itself_off(amp: SuiteAmp) -> bool:
    """Return True if ``torch.autocast`` disables itself, as it does for CUDA without CUDA."""
    return amp.device.type == "cuda" and not torch.cuda.is_available()


def _region(amp: SuiteAmp, kind: str, dtype: torch.dtype | None) -> torch.autocast:
    if amp.device.kind is DeviceKind.FAKE and amp.device.type == "mps" and RELEASE < (2, 10):
        pytest.skip("up to torch 2.9 the class asks macOS for its version, which there is none of here")
    region: Any = torch.autocast
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CUDA is not available")
        result: torch.autocast = region(amp.device.type, dtype, **KEYWORDS[kind])
    return result


def _inside(amp: SuiteAmp, kind: str, dtype: torch.dtype, before: State) -> State:
    keywords = KEYWORDS[kind]
    enabled = keywords.get("enabled", True) and not _switches_itself_off(amp)
    return State(enabled, dtype, keywords.get("cache_enabled", before.cache), before.depth + 1)


@EACH
@pytest.mark.parametrize("ends", ["leaves", "raises"])
def test_it_sets_the_state_and_restores_it(amp: SuiteAmp, kind: str, ends: str) -> None:
    before, observed = State.now(amp.device.type), []
    other = OTHER[before.dtype]  # with the current dtype, a missing restoration would not show
    with contextlib.suppress(Interrupted), _region(amp, kind, other):
        observed.append(State.now(amp.device.type))
        if ends == "raises":
            raise Interrupted
    expected = [_inside(amp, kind, other, before)]
    expect_state(amp, f"in torch.autocast ({kind})", observed, expected, likely="__enter__ asks which device it is for")
    actual = State.now(amp.device.type)
    expect_state(amp, f"after torch.autocast ({kind})", actual, before, likely="__exit__ asks which device it was for")


@EACH
@pytest.mark.parametrize("outer", ["on", "off", "other dtype", "no cache"])
def test_it_nests_in_any_region(amp: SuiteAmp, outer: str, kind: str) -> None:
    """Nest it in each outer region: products follow the inner region inside, and the outer one after it."""
    keywords: dict[str, Any] = {
        "on": {},
        "off": {"enabled": False},
        "other dtype": {"dtype": OTHER[amp.dtype]},
        "no cache": {"cache_enabled": False},
    }
    with amp.device.tensors(), amp.autocast(**keywords[outer]):
        before, product = State.now(amp.device.type), product_dtype(amp.device.torch_device)
        with _region(amp, kind, amp.dtype):
            state, low = State.now(amp.device.type), product_dtype(amp.device.torch_device)
        after, again = State.now(amp.device.type), product_dtype(amp.device.torch_device)
    expected = _inside(amp, kind, amp.dtype, before)
    expect_state(amp, f"in torch.autocast ({kind})", state, expected, likely="__enter__ keeps what it found")
    assert low is (amp.dtype if expected.enabled else torch.float32)
    expect_state(amp, "after it", (after, again), (before, product), likely="__exit__ restores defaults")


@EACH
def test_its_decorator_is_a_region(amp: SuiteAmp, kind: str) -> None:
    """Each call runs in a region with the decorator's arguments; the function keeps its name and its docstring."""
    observed: list[State] = []

    @_region(amp, kind, OTHER[amp.dtype])
    def look() -> str:
        """What the state is."""
        observed.append(State.now(amp.device.type))
        return "a result"

    before = State.now(amp.device.type)
    assert [look(), look()] == ["a result"] * 2
    expected = [_inside(amp, kind, OTHER[amp.dtype], before)] * 2
    expect_state(
        amp, "in a decorated function", observed, expected, likely="the decorator drops the arguments of its region"
    )
    assert State.now(amp.device.type) == before
    assert (look.__name__, look.__doc__) == ("look", "What the state is.")


@pytest.mark.skipif(RELEASE < (2, 9), reason="__enter__ returns nothing in torch 2.6")
def test_as_gives_the_region(amp: SuiteAmp) -> None:
    region = _region(amp, "plain", amp.dtype)
    with region as entered:
        assert entered is region


def _exceptions() -> Iterator[type[BaseException]]:
    """Yield Python's exceptions that need no arguments, and torch's OutOfMemoryError."""
    yield torch.OutOfMemoryError
    for kind in vars(builtins).values():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            with contextlib.suppress(TypeError):  # an exception group requires exceptions
                kind()
                yield kind


def test_an_exception_is_never_swallowed(amp: SuiteAmp) -> None:
    """Raise each exception in a region: ``__exit__`` never returns a true value."""
    for kind in _exceptions():
        with pytest.raises(kind), _region(amp, "plain", amp.dtype):
            raise kind


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda region: pickle.loads(pickle.dumps(region)),  # noqa: S301  # what was pickled here
}


@EACH
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_the_region_that_it_was_made_of(amp: SuiteAmp, way: str, kind: str) -> None:
    """Copy a region, as when a model that stores one is copied or sent to a worker."""
    before, other = State.now(amp.device.type), OTHER[amp.dtype]
    result = COPIES[way](_region(amp, kind, other))
    with result:
        observed = State.now(amp.device.type)
    expected = _inside(amp, kind, other, before)
    expect_state(
        amp, f"in a {way} of torch.autocast ({kind})", observed, expected, likely="a copy forgets its arguments"
    )
    assert State.now(amp.device.type) == before


@pytest.mark.parametrize("ends", ["leaves", "raises"])
def test_a_region_that_was_left_is_let_go(amp: SuiteAmp, ends: str) -> None:
    """Nothing retains the regions that a loop creates in each step."""
    left = []
    for _ in range(3):
        region = _region(amp, "plain", amp.dtype)
        left.append(weakref.ref(region))
        with contextlib.suppress(Interrupted), region:
            if ends == "raises":
                raise Interrupted
        del region
    gc.collect()
    assert [reference() for reference in left] == [None] * 3


@contextlib.contextmanager
def _restored(kinds: list[str]) -> Iterator[None]:
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    try:
        yield
    finally:
        for kind, enabled, dtype in before:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


@pytest.mark.parametrize("expected_name", ["a setter", "a region"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_without_a_dtype_it_has_the_current_one(amp: SuiteAmp, dtype: torch.dtype, expected_name: str) -> None:
    """A region without ``dtype`` uses the dtype that ``set_autocast_dtype`` or the outer region has set."""
    with _restored([amp.device.type]), contextlib.ExitStack() as around:
        if expected_name == "a setter":
            torch.set_autocast_dtype(amp.device.type, dtype)
        else:
            around.enter_context(_region(amp, "plain", dtype))
        before = State.now(amp.device.type)
        with _region(amp, "plain", None):
            observed = State.now(amp.device.type)
    expected = _inside(amp, "plain", dtype, before)
    expect_state(
        amp,
        f"in torch.autocast without a dtype, in {expected_name}",
        observed,
        expected,
        likely="its dtype is a constant",
    )


@pytest.mark.parametrize("setter", ["enabled", "dtype"])
def test_a_setter_sets_one_device_type(amp: SuiteAmp, setter: str) -> None:
    """Test ``torch.set_autocast_enabled`` and ``set_autocast_dtype``, with which every region is implemented."""
    kinds = [kind for kind in ("cpu", *FAKE_TYPES) if torch.amp.is_autocast_available(kind)]

    def states() -> dict[str, tuple[bool, torch.dtype]]:
        return {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}

    with _restored(kinds):
        expected = states()
        enabled, dtype = expected[amp.device.type]
        if setter == "enabled":
            torch.set_autocast_enabled(amp.device.type, not enabled)
            expected[amp.device.type] = (not enabled, dtype)
        else:
            torch.set_autocast_dtype(amp.device.type, OTHER[dtype])
            expected[amp.device.type] = (enabled, OTHER[dtype])
        actual = states()
    expect_state(amp, f"after set_autocast_{setter}", actual, expected, likely="a setter writes another device's state")
