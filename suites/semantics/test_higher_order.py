"""Higher-order functions under autocast: ``torch.cond``, flex attention, ``vmap``, futures, batched gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error
from pytest_amp.precision import dtype_name

from .state import OTHER


def _tensors(amp: SuiteAmp, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape).to(amp.device.torch_device) for shape in shapes]


def _cond(amp: SuiteAmp) -> Tensor:
    x, weight = _tensors(amp, (4, 8), (8, 8))
    result: Tensor = torch.cond(torch.tensor(True), lambda a, b: a @ b, lambda a, b: a @ b.T, (x, weight))  # noqa: FBT003
    return result


def _flex(amp: SuiteAmp) -> Tensor:
    flex: Any = flex_attention
    result: Tensor = flex.flex_attention(*_tensors(amp, *((1, 2, 8, 16),) * 3))
    return result


def _chunks(amp: SuiteAmp) -> Tensor:
    x, weight = _tensors(amp, (6, 4, 8), (8, 8))
    result: Tensor = torch.func.vmap(lambda row: torch.mm(row, weight), chunk_size=2)(x)
    return result


def _vmap_over_columns(amp: SuiteAmp) -> Tensor:
    x, weight = _tensors(amp, (4, 6, 8), (8, 8))
    result: Tensor = torch.func.vmap(lambda row: torch.mm(row, weight), in_dims=1, out_dims=2)(x)
    return result


def _fork(amp: SuiteAmp) -> Tensor:
    future: Any = torch.jit.fork(torch.mm, *_tensors(amp, (4, 8), (8, 8)))
    result: Tensor = torch.jit.wait(future)
    return result


def _future(amp: SuiteAmp) -> Tensor:
    """Compute a product in the callback of a future that is already complete."""
    future: Any = torch.futures.Future()
    future.set_result(_tensors(amp, (4, 8), (8, 8)))
    result: Tensor = future.then(lambda done: torch.mm(*done.value())).wait()
    return result


#: Calls whose operators are on autocast's list of the low dtype: the results are low-precision in a region.
CALLS: dict[str, Callable[[SuiteAmp], Tensor]] = {
    "torch.cond": _cond,
    "flex_attention": _flex,
    "vmap in chunks": _chunks,
    "vmap over columns": _vmap_over_columns,
    "jit.fork": _fork,
    "Future.then": _future,
}


@pytest.mark.filterwarnings("ignore:.*flex_attention", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("region", ["on", "other dtype", "off", "none"])
@pytest.mark.parametrize("call", CALLS)
def test_what_it_calls_is_in_the_region(amp: SuiteAmp, call: str, region: str) -> None:
    """Results have the region's dtype, and differ from float32 by a few of its unit roundoffs, but not by zero."""
    torch.manual_seed(amp.config.seed)
    plain = CALLS[call](amp)
    torch.manual_seed(amp.config.seed)
    dtype = OTHER[amp.dtype] if region == "other dtype" else amp.dtype
    if region == "none":
        actual = CALLS[call](amp)
    else:
        with amp.autocast(dtype=dtype, enabled=region != "off"):
            actual = CALLS[call](amp)
    low = region in {"on", "other dtype"}
    amp.observe(f"{call}, {region}", dtype_name(actual.dtype), kind="dtype")
    assert actual.dtype is (dtype if low else torch.float32)
    u = torch.finfo(dtype).eps / 2
    error = relative_error(actual, plain)
    assert error <= (8 * u if low else 0.0), f"{call} differs from float32 by {error:.3g}"
    assert error > 0 or not low, "nothing was rounded"


def test_a_batch_of_gradients_is_its_gradients(amp: SuiteAmp) -> None:
    """``is_grads_batched`` returns the gradients of one backward pass per row, within a unit roundoff of the low dtype.

    Gradients of the float32 part of the graph stay float32.
    """
    device = amp.device.torch_device
    x, weight = (tensor.requires_grad_() for tensor in _tensors(amp, (5, 24), (16, 24)))
    with amp.autocast():
        low = torch.nn.functional.linear(x, weight)
    # The factor, a mean of squares, is about 1 with any seed, so that gradients stay in the range of fp16.
    result = (low.float() * weight.square().mean()).square()
    rows = torch.randn(3, *result.shape).to(device)
    inputs = [x, weight]
    batched = torch.autograd.grad(result, inputs, rows, retain_graph=True, is_grads_batched=True)
    single_passes = [torch.autograd.grad(result, inputs, row, retain_graph=True) for row in rows]
    for index, batch in enumerate(batched):
        assert batch.dtype is torch.float32
        expected = torch.stack([gradients[index] for gradients in single_passes])
        error = relative_error(batch, expected)
        assert error <= amp.precision.u, (
            f"gradients of argument {index} differ from those of single passes by {error:.3g}"
        )
    # A part of the weight's gradient bypasses the low-precision product, so the sum has full float32 precision.
    amp.check_fp32(batched[1], name="the batch of gradients")
