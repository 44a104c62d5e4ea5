"""``@torch.autocast(...)`` on a function or a method is a region around each call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .state import OTHER, State, expect_dtype, expect_state, product_dtype


def test_a_function_runs_in_the_region(amp: SuiteAmp) -> None:
    @torch.autocast(amp.device.type, amp.dtype)
    def forward(left: torch.Tensor, *, right: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return torch.mm(left, right)

    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    actual = forward(matrix, right=matrix)
    expect_dtype(amp, "decorated function", actual.dtype, amp.dtype, likely="the decorator enters no region")
    assert torch.equal(actual, torch.mm(matrix.to(amp.dtype), matrix.to(amp.dtype)))
    assert (forward.__name__, forward.__doc__) == ("forward", "Multiply.")
    assert product_dtype(amp.device.torch_device) is torch.float32, "the region outlives the decorated call"


def test_a_method_runs_in_the_region(amp: SuiteAmp) -> None:
    """As on the ``forward`` of a module (docstring of ``torch.autocast``)."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        @torch.autocast(amp.device.type, amp.dtype)
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layer(batch)  # type: ignore[no-any-return]

    model = Model().to(amp.device.torch_device)
    actual = model(torch.randn(2, 4, device=amp.device.torch_device)).dtype
    expect_dtype(amp, "decorated method", actual, amp.dtype, likely="the decorator enters no region")


def test_a_disabled_decorator_is_a_float32_island(amp: SuiteAmp) -> None:
    @torch.autocast(amp.device.type, enabled=False)
    def in_disabled_region() -> torch.dtype:
        return product_dtype(amp.device.torch_device)

    with amp.autocast():
        actual = in_disabled_region()
    expect_dtype(amp, "function decorated as disabled", actual, torch.float32, likely="enabled=False is not passed on")


def test_each_call_restores_what_it_found(amp: SuiteAmp) -> None:
    """Call outside and in a region of the other dtype; the function raises."""

    @torch.autocast(amp.device.type, amp.dtype)
    def fails() -> None:
        raise KeyError

    outside = State.now(amp.device.type)
    with pytest.raises(KeyError):
        fails()
    likely = "the decorator's region does not restore what it found"
    expect_state(amp, "after a decorated function that raised", State.now(amp.device.type), outside, likely=likely)
    with amp.autocast(dtype=OTHER[amp.dtype], cache_enabled=False):
        before = State.now(amp.device.type)
        with pytest.raises(KeyError):
            fails()
        after = State.now(amp.device.type)
    expect_state(amp, "in a region, after a decorated function that raised", after, before, likely=likely)


def test_a_recursive_function_restores_what_it_found(amp: SuiteAmp) -> None:
    @torch.autocast(amp.device.type, amp.dtype)
    def recurse(depth: int) -> None:
        if depth:
            recurse(depth - 1)

    before = State.now(amp.device.type)
    recurse(2)
    after = State.now(amp.device.type)
    torch.set_autocast_enabled(amp.device.type, before.enabled)
    torch.set_autocast_dtype(amp.device.type, before.dtype)
    assert after == before


def test_a_generator_leaves_its_consumer_alone(amp: SuiteAmp) -> None:
    """The region covers only the call that creates the generator: neither its body nor its consumer runs in it."""

    @torch.autocast(amp.device.type, amp.dtype)
    def generate() -> Iterator[torch.dtype]:
        yield product_dtype(amp.device.torch_device)
        yield product_dtype(amp.device.torch_device)

    before = State.now(amp.device.type)
    actual = []
    for dtype in generate():
        actual.append(dtype)
        consumer = State.now(amp.device.type)
        expect_state(amp, "of a decorated generator's consumer", consumer, before, likely="the region leaks at yield")
    amp.observe("decorated generator", [dtype_name(dtype) for dtype in actual], kind="dtype")
    assert actual == [torch.float32] * 2, (
        f"a decorated generator's body computes in {[dtype_name(dtype) for dtype in actual]}"
    )


def test_arguments_are_the_functions_own(amp: SuiteAmp) -> None:
    """The function receives all keywords, including ``enabled``, ``dtype``, ``device_type`` and ``cache_enabled``."""

    @torch.autocast(amp.device.type, amp.dtype)
    def function(*args: object, **keywords: object) -> tuple[tuple[object, ...], dict[str, object], torch.dtype]:
        return args, keywords, product_dtype(amp.device.torch_device)

    keywords = {"enabled": False, "dtype": "float64", "device_type": None, "cache_enabled": 1, "func": 2}
    assert function(1, 2, **keywords) == ((1, 2), keywords, amp.dtype)


def test_every_kind_of_method_runs_in_the_region(amp: SuiteAmp) -> None:
    def product() -> torch.dtype:
        return product_dtype(amp.device.torch_device)

    class Model:
        @staticmethod
        @torch.autocast(amp.device.type, amp.dtype)
        def static(result: object) -> tuple[object, torch.dtype]:
            return result, product()

        @classmethod
        @torch.autocast(amp.device.type, amp.dtype)
        def of_class(cls) -> tuple[object, torch.dtype]:
            return cls, product()

        @property
        @torch.autocast(amp.device.type, amp.dtype)
        def attribute(self) -> torch.dtype:
            return product()

        @torch.autocast(amp.device.type, amp.dtype)
        def __call__(self) -> torch.dtype:
            return product()

    assert Model.static(3) == (3, amp.dtype)
    assert Model.of_class() == (Model, amp.dtype)
    assert (Model().attribute, Model()()) == (amp.dtype, amp.dtype)
    decorated = torch.autocast(amp.device.type, amp.dtype)(lambda: product())  # noqa: PLW0108  # a lambda is meant
    assert decorated() is amp.dtype


def test_an_object_entered_in_itself_restores_what_it_found(amp: SuiteAmp) -> None:
    before, default = State.now(amp.device.type), torch.get_autocast_dtype(amp.device.type)
    region = torch.autocast(amp.device.type, amp.dtype)
    with region, region:
        pass
    after = State.now(amp.device.type)
    torch.set_autocast_enabled(amp.device.type, before.enabled)
    torch.set_autocast_dtype(amp.device.type, default)
    assert after == before


def test_an_object_may_be_used_again_and_again(amp: SuiteAmp) -> None:
    """Reuse one object in different outer regions: each exit restores the state of the matching entry."""
    region = torch.autocast(amp.device.type, amp.dtype)
    for enabled, dtype in ((False, amp.dtype), (True, OTHER[amp.dtype]), (True, amp.dtype), (False, OTHER[amp.dtype])):
        with amp.autocast(enabled=enabled, dtype=dtype, cache_enabled=False):
            before = State.now(amp.device.type)
            with region:
                assert product_dtype(amp.device.torch_device) is amp.dtype
            after = State.now(amp.device.type)
        expect_state(amp, "after an object used again", after, before, likely="it keeps what it found the first time")
