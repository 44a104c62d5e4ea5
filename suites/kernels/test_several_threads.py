"""CPU operators on several threads, as users run them: results and gradients match those of one thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import exceeds, relative_error
from pytest_amp.precision import FP32

Shape = tuple[int, ...]

#: More threads than most CI machines have cores; torch divides work of any size among them.
THREADS = 4


@dataclass(frozen=True)
class Work:
    """Function, and the shapes of its low-precision and float32 arguments; torch divides such work among threads."""

    function: Callable[..., Tensor]
    low: tuple[Shape, ...]
    wide: tuple[Shape, ...] = ()


def _rows(count: int, x: Tensor) -> Tensor:
    return torch.arange(3000, device=x.device) * 7 % count


_MATRIX, _IMAGE, _BLOCK = ((400, 256),), ((8, 16, 48, 48),), (64, 40, 40)

WORK = {
    "linear": Work(f.linear, (), ((400, 256), (200, 256), (200,))),
    "bmm": Work(torch.bmm, (), (_BLOCK, _BLOCK)),
    "conv2d": Work(lambda x, w, b: f.conv2d(x, w, b, padding=1), (), (*_IMAGE, (16, 16, 3, 3), (16,))),
    "attention": Work(f.scaled_dot_product_attention, (), ((4, 4, 100, 32),) * 3),
    "softmax": Work(lambda x: x.softmax(-1), _MATRIX),
    "softmax of columns": Work(lambda x: x.softmax(0), _MATRIX),
    "log_softmax": Work(lambda x: x.log_softmax(-1), _MATRIX),
    "layer_norm": Work(lambda x: f.layer_norm(x, (256,)), _MATRIX),
        # Not with low-precision rows: gradients of float32 weights are then inexact on one thread, too (the oracle's
    # `known sums`).
    "layer_norm of float32": Work(lambda x, w, b: f.layer_norm(x, w.shape, w, b), (), (*_MATRIX, (256,), (256,))),
    "group_norm": Work(lambda x, w, b: f.group_norm(x, 4, w, b), _IMAGE, ((16,), (16,))),
    "batch_norm": Work(lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True), _IMAGE, ((16,), (16,))),
    "sum": Work(lambda x: x.sum((0, 2, 3)), _IMAGE),
    "sum of everything": Work(lambda x: (x.abs() / 64).sum(), _MATRIX),
    "sum of rows": Work(lambda x: x.sum(1), _MATRIX),
    "mean of columns": Work(lambda x: x.mean(0), _MATRIX),
    "var": Work(lambda x: x.var(0), _MATRIX),
    "cumsum": Work(lambda x: x.abs().cumsum(0), _MATRIX),
    "amax": Work(lambda x: x.amax(0), _MATRIX),
    "gelu": Work(f.gelu, _MATRIX),
    "a row beside many": Work(torch.mul, ((256,), *_MATRIX)),
    "transposed and copied": Work(lambda x: x.t().contiguous(), _MATRIX),
    "cast to float32": Work(lambda x: x.float(), _MATRIX),
    "cat": Work(lambda x, y: torch.cat((x, y), 1), (*_MATRIX, *_MATRIX)),
    "embedding": Work(lambda w: f.embedding(_rows(500, w), w), (), ((500, 64),)),
    "index_add": Work(lambda x, y: x.index_add(0, _rows(500, x), y), (), ((500, 64), (3000, 64))),
    "index_select": Work(lambda x: x.index_select(0, _rows(400, x)), _MATRIX),
    "max_pool2d": Work(lambda x: f.max_pool2d(x, 3, 2), _IMAGE),
    "avg_pool2d": Work(lambda x: f.avg_pool2d(x, 3, 2), _IMAGE),
    "interpolate": Work(lambda x: f.interpolate(x, scale_factor=1.5, mode="bilinear"), _IMAGE),
    "cross_entropy": Work(lambda x: f.cross_entropy(x, torch.arange(400) % 256), _MATRIX),
    "mse_loss": Work(f.mse_loss, (*_MATRIX, *_MATRIX)),
}  # fmt: skip


def _results(amp: SuiteAmp, work: Work, values: list[Tensor], gradient: Tensor | None, threads: int) -> list[Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        leaves = [x.clone().requires_grad_() for x in values]
        with amp.autocast():
            result = work.function(*leaves)
        torch.autograd.backward(result, torch.ones_like(result) if gradient is None else gradient.to(result.dtype))
    finally:
        torch.set_num_threads(before)
    gradients = [x.grad for x in leaves]
    assert all(x is not None for x in gradients)
    return [result.detach(), *(x for x in gradients if x is not None)]


def _allowed(amp: SuiteAmp, one: Tensor) -> float:
    """Return the allowed relative L2 error: a few values rounded to the low dtype may round to the adjacent value."""
    if torch.equal(one, one.to(amp.dtype).to(one.dtype)):
        return amp.precision.u * max(0.5, 4 / math.sqrt(one.numel()))
    return 64 * FP32.u


@pytest.mark.amp(devices=["cpu"])  # intra-op threads exist on the CPU only
@pytest.mark.parametrize("name", WORK)
def test_several_threads_compute_what_one_computes(amp: SuiteAmp, name: str) -> None:
    """Threads may change the order of float32 sums, so that a result occasionally rounds to the adjacent value."""
    work = WORK[name]
    low = [torch.randn(shape).to(amp.dtype) for shape in work.low]
    values = [*low, *(torch.randn(shape) for shape in work.wide)]
    shape = work.function(*values).shape
    gradient = torch.randn(shape).to(amp.dtype) if shape else None
    one = _results(amp, work, values, gradient, 1)
    several = _results(amp, work, values, gradient, THREADS)
    assert [x.dtype for x in several] == [x.dtype for x in one]
    for index, (a, b) in enumerate(zip(several, one, strict=True)):
        of = "the result" if index == 0 else f"the gradient of argument {index - 1}"
        error = relative_error(a, b)
        allowed = _allowed(amp, b) * amp.config.tolerance_scale
        if exceeds(error, allowed):
            raise AmpFailure(
                f"{name} on {THREADS} threads: {of} differs from that of one thread by {error:.3g}, "
                f"more than the allowed {allowed:.3g}",
                label_before="one thread",
                before=f"{b.dtype} of norm {float(b.float().norm()):.4g}",
                now=f"norm {float(a.float().norm()):.4g}, torch {torch.__version__}, {amp.device.describe()}",
                likely="the share of one thread is lost or rounded, or parts are summed in the low dtype",
            )
