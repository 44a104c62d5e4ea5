"""Cast cache: a weight is cast once in a region, and its copy never outlives the region.

The casts of one weight that reach the back end are counted, not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.torch_private import recorded_calls

from .state import OTHER
from .users import OPERATORS

#: Under inference mode a cast reaches the back end as ``aten::to``, undivided.
_CASTS = ("aten::_to_copy", "aten::to.dtype")
_SHAPE = (24, 8)


@pytest.fixture
def layer(amp: SuiteAmp) -> nn.Linear:
    """Return a layer whose weight has a unique shape, by which its casts are identified."""
    return nn.Linear(_SHAPE[1], _SHAPE[0]).to(amp.device.torch_device)


@pytest.fixture
def batch(amp: SuiteAmp) -> torch.Tensor:
    """Return an input of the layer."""
    return torch.randn(4, _SHAPE[1], device=amp.device.torch_device)


@contextmanager
def _casts() -> Iterator[Callable[[], int]]:
    """Count the casts of the float32 weight inside the block."""
    with recorded_calls() as calls:
        yield lambda: sum(c.operator in _CASTS and c.tensors[:1] == (f"float32{list(_SHAPE)}",) for c in calls)


def _expect(amp: SuiteAmp, fact: str, actual: int, expected: int, *, likely: str) -> None:
    amp.observe(f"casts, {fact}", actual, kind="count")
    if actual != expected:
        raise AmpFailure(
            f"a weight is cast {actual} times instead of {expected} ({fact}) on {amp.target.id}",
            label_before="rule",
            before=f"{expected}: aten/src/ATen/autocast_mode.cpp, cached_cast",
            now=f"{actual} on torch {torch.__version__}",
            likely=likely,
        )


@pytest.mark.parametrize("mode", ["grad", "no_grad"])
def test_a_weight_is_cast_once_in_a_region(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, mode: str) -> None:
    """Cast once with and without gradients (pytorch/pytorch#48049: memory grew tenfold under no_grad)."""
    with torch.set_grad_enabled(mode == "grad"), _casts() as casts, amp.autocast():
        for _ in range(3):
            layer(batch)
    likely = "the cache is off or is missed: peak memory and time grow"
    _expect(amp, f"three uses under {mode}", casts(), 1, likely=likely)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_finds_the_cached_copy(amp: SuiteAmp, operator: str) -> None:
    """Two uses of a parameter, by any operators, are one cast."""
    shape, use = OPERATORS[operator]
    weight = nn.Parameter(torch.randn(shape).to(amp.device.torch_device))
    with recorded_calls() as calls, amp.autocast():
        first, second = use(weight), use(weight)
    assert first.dtype is amp.dtype
    assert torch.equal(first, second)
    actual = sum(c.operator in _CASTS and c.tensors[:1] == (f"float32{list(shape)}",) for c in calls)
    _expect(amp, f"two uses by {operator}", actual, 1, likely=f"{operator}'s autocast kernel goes around the cache")


def test_cached_results_are_the_first_one(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """The second use computes the same bits as the first, and as a region without a cache."""
    with amp.autocast(cache_enabled=False):
        uncached = layer(batch)
    with amp.autocast():
        first, second = layer(batch), layer(batch)
    assert torch.equal(first, uncached)
    assert torch.equal(second, uncached)


def test_without_the_cache_each_use_casts(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    with _casts() as casts, amp.autocast(cache_enabled=False):
        for _ in range(3):
            layer(batch)
    _expect(amp, "three uses, cache_enabled=False", casts(), 3, likely="cache_enabled=False is ignored")


def test_a_frozen_weight_is_never_cached(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """Only weights that require gradients are cached; a frozen one is cast on each use."""
    layer.requires_grad_(requires_grad=False)
    with _casts() as casts, amp.autocast():
        for _ in range(3):
            layer(batch)
    _expect(amp, "three uses, frozen", casts(), 3, likely="the cache takes in tensors that do not require grad")


def test_a_tensor_without_gradients_is_read_as_it_is(amp: SuiteAmp) -> None:
    """Each product uses the current values of a mask or a table that is written to within a region."""
    table, one = (torch.ones(8, 8, device=amp.device.torch_device) for _ in range(2))
    products: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
    products = [torch.mm, torch.matmul, nn.functional.linear, lambda a, b: torch.bmm(a[None], b[None])[0]]
    with amp.autocast():
        for product in products:
            table.fill_(1.0)
            before = product(one, table)
            table.fill_(2.0)
            assert torch.equal(product(one, table), before * 2), "a product has what was in a tensor before"


#: Tensors computed from a weight, in its shape: values of their own, and views.
COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda weight: weight * 2,
    "view": lambda weight: weight.view_as(weight),
    "rows": lambda weight: torch.cat([weight, weight])[: len(weight)],
    "all rows": lambda weight: weight[:],
    "transposed twice": lambda weight: weight.t().t(),
}


@pytest.mark.parametrize("way", COMPUTED)
def test_a_computed_weight_is_never_cached(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, way: str) -> None:
    """Only leaves are cached: tensors computed from parameters may be freed before the region ends."""
    with _casts() as casts, amp.autocast():
        weight = COMPUTED[way](layer.weight)
        for _ in range(3):
            nn.functional.linear(batch, weight)
    _expect(amp, f"three uses, computed, {way}", casts(), 3, likely="the cache takes in activations")


def test_each_region_casts_anew(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    with _casts() as casts:
        for _ in range(2):
            with amp.autocast():
                layer(batch)
                layer(batch)
    _expect(amp, "two regions", casts(), 2, likely="the cache is not dropped when the region ends")


def test_nested_regions_share_the_cache(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """The cache is cleared where the outermost region ends, not in between."""
    with _casts() as casts, amp.autocast():
        layer(batch)
        with amp.autocast():
            layer(batch)
        with amp.autocast(enabled=False):
            layer(batch)
        layer(batch)
    _expect(amp, "nested regions", casts(), 1, likely="an inner region drops the outer one's cache")


def test_an_inner_region_without_cache_casts(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """The inner region casts at each use, and none is needed after it: the outer region's copy is still there."""
    with _casts() as casts, amp.autocast():
        layer(batch)
        with amp.autocast(cache_enabled=False):
            layer(batch)
            layer(batch)
        layer(batch)
    _expect(amp, "an inner region without cache", casts(), 3, likely="cache_enabled is not restored or not obeyed")


def test_clearing_the_cache_casts_again(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    with _casts() as casts, amp.autocast():
        layer(batch)
        torch.clear_autocast_cache()
        layer(batch)
    _expect(amp, "cleared in between", casts(), 2, likely="torch.clear_autocast_cache() clears nothing")


#: Ways to turn gradients off or on temporarily, within a region.
SWITCHES: dict[str, Callable[[], object]] = {
    "set_grad_enabled": lambda: torch.set_grad_enabled(True),
    "enable_grad": lambda: _entered(torch.enable_grad()),
    "no_grad": lambda: _entered(torch.no_grad()),
    "inference_mode": lambda: _entered(torch.inference_mode()),
    "set_multithreading_enabled": lambda: _entered(torch.autograd.set_multithreading_enabled(False)),
}


def _entered(mode: AbstractContextManager[object]) -> None:
    with mode:
        pass


@pytest.mark.parametrize("switch", SWITCHES)
def test_switching_gradients_leaves_the_cache(
    amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, switch: str
) -> None:
    with _casts() as casts, amp.autocast():
        layer(batch)
        SWITCHES[switch]()
        layer(batch)
    _expect(amp, f"{switch} in between", casts(), 1, likely=f"{switch} clears the cast cache: each use after it casts")


def test_a_region_that_raises_drops_its_cache(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    with _casts() as casts:
        with suppress(KeyError), amp.autocast():
            layer(batch)
            raise KeyError
        with amp.autocast():
            layer(batch)
    _expect(amp, "a region that raised, and another", casts(), 2, likely="an exception leaves the cache behind")


def test_an_update_between_regions_is_seen(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """The next region computes with in-place updates of an optimizer: no stale copy."""
    with amp.autocast():
        before = layer(batch)
    with torch.no_grad():
        layer.weight.add_(1)
    with amp.autocast():
        after = layer(batch)
    expected = nn.functional.linear(batch.to(amp.dtype), layer.weight.to(amp.dtype), layer.bias.to(amp.dtype))
    if not torch.equal(after, expected):
        raise AmpFailure(
            f"a region on {amp.target.id} computes with a stale copy of a weight that was updated before it",
            label_before="rule",
            before="the cache is dropped where the outermost region ends (torch.autocast.__exit__)",
            now="the weights of the region before" if torch.equal(after, before) else "neither old nor new weights",
            likely="the cast cache outlives its region: training continues with old weights",
        )


@pytest.mark.parametrize("first", ["no_grad", "inference_mode", "grad"])
def test_a_use_without_gradients_costs_no_gradient(
    amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor, first: str
) -> None:
    """A cast that was cached without autograd history must not be reused where a gradient is required."""
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": nullcontext}
    with amp.autocast():
        layer(batch).float().square().sum().backward()
    assert layer.weight.grad is not None
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    with amp.autocast():
        with modes[first]():
            layer(batch)
        loss = layer(batch).float().square().sum()
        with modes[first]():
            layer(batch)
    loss.backward()
    assert layer.weight.grad is not None, f"a use under {first} cost the weight its gradient"
    assert torch.equal(layer.weight.grad, expected)


def test_an_inner_region_of_another_dtype_casts_to_it(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    with amp.autocast():
        layer(batch)
        with amp.autocast(dtype=OTHER[amp.dtype]):
            actual = layer(batch)
    assert actual.dtype is OTHER[amp.dtype]


def test_a_new_weight_never_meets_an_old_copy(amp: SuiteAmp, batch: torch.Tensor) -> None:
    """Create and delete models in one region: a weight at a reused address does not hit its predecessor's entry."""
    with amp.autocast():
        for _ in range(20):
            layer = nn.Linear(_SHAPE[1], _SHAPE[0], bias=False, device=amp.device.torch_device)
            actual, weight = layer(batch), layer.weight.detach()
            assert torch.equal(actual, nn.functional.linear(batch.to(amp.dtype), weight.to(amp.dtype)))
            del layer, actual


def test_a_shared_weight_is_cast_once_for_all_its_users(amp: SuiteAmp, layer: nn.Linear, batch: torch.Tensor) -> None:
    """Tied weights: two layers with one parameter."""
    tied = nn.Linear(_SHAPE[1], _SHAPE[0], device=amp.device.torch_device)
    tied.weight = layer.weight
    with _casts() as casts, amp.autocast():
        layer(batch)
        tied(batch)
    _expect(amp, "tied, one use each", casts(), 1, likely="the cache's key is no longer the parameter")
