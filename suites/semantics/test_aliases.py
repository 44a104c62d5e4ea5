"""Deprecated classes and queries behave like their successors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .state import OTHER, State, product_dtype

#: ``torch.cpu.amp.autocast`` and ``torch.cuda.amp.autocast`` are deprecated since torch 2.4 in favour of torch.amp's.
_MODULES = {"cpu": torch.cpu.amp, "cuda": torch.cuda.amp}

pytestmark = pytest.mark.amp(devices=["cpu", "cuda"])


def _alias(amp: SuiteAmp, **keywords: object) -> AbstractContextManager[None]:
    factory: Callable[..., AbstractContextManager[None]] = _MODULES[amp.device.type].autocast
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return factory(**keywords)


@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_the_deprecated_region_is_the_same(amp: SuiteAmp, *, enabled: bool, cache: bool) -> None:
    device = amp.device.type
    with amp.autocast(enabled=enabled, cache_enabled=cache):
        expected, product = State.now(device), product_dtype(amp.device.torch_device)
    with _alias(amp, dtype=amp.dtype, enabled=enabled, cache_enabled=cache):
        assert State.now(device) == expected
        assert product_dtype(amp.device.torch_device) is product
    amp.observe(f"deprecated region, enabled={enabled}, cache={cache}", dtype_name(product), kind="dtype")


@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])
def test_the_deprecated_region_decorates_with_its_own_state(amp: SuiteAmp, *, enabled: bool) -> None:
    """Decorate as older code decorates ``forward``: with both dtypes, called outside and inside another region."""
    device = amp.device.type
    for dtype in (amp.dtype, OTHER[amp.dtype]):
        region: Any = _alias(amp, dtype=dtype, enabled=enabled)
        decorated = region(lambda: (State.now(device), product_dtype(amp.device.torch_device)))
        with amp.autocast(dtype=dtype, enabled=enabled):
            expected = State.now(device), product_dtype(amp.device.torch_device)
        assert decorated() == expected
        with amp.autocast():
            assert decorated()[1] is expected[1]


@pytest.mark.amp(devices=["cpu"])
def test_the_queries_of_the_cpu_answer_the_same(amp: SuiteAmp) -> None:
    """``torch.is_autocast_cpu_enabled`` and ``torch.get_autocast_cpu_dtype`` are deprecated since torch 2.4."""
    if not hasattr(torch, "is_autocast_cpu_enabled"):
        pytest.skip("this torch has removed its deprecated queries")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for enabled in (True, False):
            with amp.autocast(enabled=enabled):
                assert torch.is_autocast_cpu_enabled() is enabled
                assert torch.get_autocast_cpu_dtype() is torch.get_autocast_dtype("cpu")
        with amp.autocast():
            assert torch.get_autocast_cpu_dtype() is amp.dtype


def test_the_deprecated_region_names_its_successor(amp: SuiteAmp) -> None:
    """Older code learns of the removal by a FutureWarning, since torch 2.4."""
    factory: Callable[..., AbstractContextManager[None]] = _MODULES[amp.device.type].autocast
    with pytest.warns(FutureWarning, match=r"torch\.amp\.autocast"):
        factory()


def test_the_query_of_the_gpu_answers_the_same(amp: SuiteAmp) -> None:
    """``torch.get_autocast_gpu_dtype`` means CUDA on every machine."""
    if not hasattr(torch, "get_autocast_gpu_dtype"):
        pytest.skip("this torch has removed its deprecated queries")
    with warnings.catch_warnings(), amp.autocast():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert torch.get_autocast_gpu_dtype() is torch.get_autocast_dtype("cuda")


def test_the_old_setters_without_a_device_mean_cuda(amp: SuiteAmp) -> None:
    """``torch.set_autocast_gpu_dtype``, deprecated since torch 2.4, and ``set_autocast_enabled`` of a flag alone."""
    if not hasattr(torch, "set_autocast_gpu_dtype"):
        pytest.skip("this torch has removed its deprecated setters")
    kinds = ("cpu", "cuda")
    before = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
    other = OTHER[amp.dtype]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            torch.set_autocast_gpu_dtype(other)
            torch.set_autocast_enabled(True)
            actual = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
        finally:
            torch.set_autocast_enabled("cuda", before["cuda"][0])
            torch.set_autocast_dtype("cuda", before["cuda"][1])
    assert actual == {**before, "cuda": (True, other)}
