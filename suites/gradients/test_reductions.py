"""Long sums: products and convolutions accumulate in float32 and round once, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import check_reduction, measure_roundings, relative_error
from pytest_amp.record import Value


@dataclass(frozen=True)
class Reduction:
    """Operator, and the shapes of its arguments as a function of the number of terms in each sum."""

    function: Callable[..., Tensor]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]
    low: bool = False  #: True if arguments are low-precision: with float32 arguments, some devices sum in float32.


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def bilinear_einsum(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.einsum("bik,bkj->bij", a, b)
    return product


def dots(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.matmul(x, y) for x, y in zip(a, b, strict=True)])


def strided(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x.mT, weight, bias)


#: Sums of the forward pass: over input features, or over channels times the elements of the convolution kernel.
FORWARD = {
    "linear": Reduction(functional.linear, lambda k: ((32, k), (24, k), (24,))),
    "matmul": Reduction(torch.matmul, lambda k: ((2, 3, 8, k), (k, 24))),
    "mm": Reduction(torch.mm, lambda k: ((32, k), (k, 24))),
    "bmm": Reduction(torch.bmm, lambda k: ((3, 16, k), (3, k, 24))),
    "addmm": Reduction(torch.addmm, lambda k: ((24,), (32, k), (k, 24))),
    "baddbmm": Reduction(torch.baddbmm, lambda k: ((3, 16, 24), (3, 16, k), (3, k, 24))),
    "matmul of vectors": Reduction(dots, lambda k: ((48, k), (48, k))),
    "einsum": Reduction(bilinear_einsum, lambda k: ((4, 16, k), (4, k, 16))),
    "addbmm": Reduction(torch.addbmm, lambda k: ((16, 24), (2, 16, k), (2, k, 24))),
    # Enough sums to average out chance in the ratio of two errors: 1 / sqrt(512), for a bias 1 / sqrt(96).
    "linalg_vecdot": Reduction(torch.linalg.vecdot, lambda k: ((512, k), (512, k))),
    # inner calls tensordot, which is on CUDA's list of promoted operators instead of the list cast to low precision.
    "inner": Reduction(torch.inner, lambda k: ((32, k), (24, k)), low=True),
    "tensordot": Reduction(
        lambda a, b: torch.tensordot(a, b, 2), lambda k: ((32, k // 8, 8), (k // 8, 8, 24)), low=True
    ),
    "conv1d": Reduction(functional.conv1d, lambda k: ((4, k // 4, 16), (16, k // 4, 4), (16,))),
    "conv2d": Reduction(functional.conv2d, lambda k: ((4, k // 16, 8, 8), (16, k // 16, 4, 4), (16,))),
    "conv3d": Reduction(functional.conv3d, lambda k: ((2, k // 64, 6, 6, 6), (16, k // 64, 4, 4, 4), (16,))),
    "conv_transpose1d": Reduction(functional.conv_transpose1d, lambda k: ((4, k, 8), (k, 8, 2), (8,))),
    "conv_transpose2d": Reduction(functional.conv_transpose2d, lambda k: ((4, k, 4, 4), (k, 8, 2, 2), (8,))),
    "conv_transpose3d": Reduction(functional.conv_transpose3d, lambda k: ((2, k, 3, 3, 3), (k, 8, 2, 2, 2), (8,))),
    "conv_tbc": Reduction(torch.conv_tbc, lambda k: ((16, 4, k // 4), (4, k // 4, 96), (96,))),
    # Without a bias a different kernel may run, and a convolution with a kernel of one pixel is a matrix product.
    "linear without bias": Reduction(functional.linear, lambda k: ((32, k), (24, k))),
    "conv1d without bias": Reduction(functional.conv1d, lambda k: ((4, k // 4, 16), (16, k // 4, 4))),
    "conv2d of one pixel": Reduction(functional.conv2d, lambda k: ((2, k, 4, 4), (16, k, 1, 1))),
    "conv_transpose2d without bias": Reduction(functional.conv_transpose2d, lambda k: ((2, k, 4, 4), (k, 8, 2, 2))),
    "scaled_dot_product_attention": Reduction(attention, lambda k: ((2, 2, 16, 32), (2, 2, k, 32), (2, 2, k, 32))),
}

#: Sums of the backward pass: over rows of the batch, pixels, output features.
BACKWARD = {
    "linear": Reduction(functional.linear, lambda k: ((k, 16), (24, 16), (24,))),
    "matmul": Reduction(torch.matmul, lambda k: ((k // 16, 16, 24), (24, 16))),
    "mm": Reduction(torch.mm, lambda k: ((k, 16), (16, 24))),
    "bmm": Reduction(torch.bmm, lambda k: ((3, k, 16), (3, 16, 24))),
    "addmm": Reduction(torch.addmm, lambda k: ((24,), (k, 16), (16, 24))),
    "baddbmm": Reduction(torch.baddbmm, lambda k: ((3, 1, 24), (3, k, 16), (3, 16, 24))),
    "addbmm": Reduction(torch.addbmm, lambda k: ((1, 24), (2, k, 16), (2, 16, 24))),
    "einsum": Reduction(bilinear_einsum, lambda k: ((4, k, 16), (4, 16, 16))),
    # A weight shared by a batch is expanded: its gradient is a sum over the batch.
    "matmul of one for all": Reduction(torch.matmul, lambda k: ((k // 16, 16, 24), (1, 24, 16))),
    "linear of strided rows": Reduction(strided, lambda k: ((16, k), (24, 16), (24,))),
    "conv1d": Reduction(functional.conv1d, lambda k: ((k // 16, 8, 18), (16, 8, 3), (16,))),
    "conv2d": Reduction(functional.conv2d, lambda k: ((k // 64, 8, 10, 10), (16, 8, 3, 3), (16,))),
    "conv3d": Reduction(functional.conv3d, lambda k: ((k // 64, 8, 6, 6, 6), (16, 8, 3, 3, 3), (16,))),
}


if holds_in(release_of(torch.__version__), since=None, until="2.7"):
    del FORWARD["matmul of vectors"]  # 2.6 and 2.7 accumulate in the low dtype on a CPU, 2.8 does not


def check(amp: SuiteAmp, name: str, reduction: Reduction, *, direction: str) -> None:
    """Check a reduction; ``name`` begins with the operator whose rounding applies."""
    operator, _, variant = name.partition(" ")
    dtype = amp.dtype if reduction.low else torch.float32
    short, long = (
        measure_roundings(reduction.function, [x.to(dtype) for x in normal(reduction.shapes(k))], amp.conditions)
        for k in (512, 4096)
    )

    way = f"over_{direction}, {variant}" if variant else f"over_{direction}"

    def observe(key: str, value: Value, /, **facts: Any) -> None:
        amp.observe(f"{key}/{way}", value, **facts)

    check_reduction(operator, short, long, amp.conditions, observe)


def normal(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    """Return normally distributed values, scaled so that their sums are in fp16's range."""
    return [torch.randn(shape) / 8 for shape in shapes]


@pytest.mark.parametrize("name", FORWARD)
def test_sums_over_features(amp: SuiteAmp, name: str) -> None:
    check(amp, name, FORWARD[name], direction="features")


@pytest.mark.amp_parametrize("name", lambda _: BACKWARD)
def test_sums_over_the_batch(amp: SuiteAmp, name: str) -> None:
    """Gradients of weight and bias sum over the whole batch."""
    check(amp, name, BACKWARD[name], direction="batch")


#: Bounds in u for products of float32 values. Three roundings of about 0.41 u each, of both arguments and of the
#: result, together make 0.71 u.
LEAST, MOST = 0.6, 0.95


@pytest.mark.parametrize("length", [64, 1024, 16384])
@pytest.mark.parametrize("name", ["mm", "linear", "bmm", "matmul"])
def test_the_law_of_products(amp: SuiteAmp, name: str, length: int) -> None:
    """The error of a product of float32 values is 0.6 to 0.95 u, however long its sums are."""
    a, b = torch.randn(32, length) / 8, torch.randn(length, 32) / 8
    product: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "mm": torch.mm,
        "linear": lambda x, y: torch.nn.functional.linear(x, y.t()),
        "bmm": lambda x, y: torch.bmm(x[None], y[None])[0],
        "matmul": lambda x, y: torch.matmul(x[:, None], y)[:, 0],
    }
    with amp.autocast():
        result = product[name](a.to(amp.device.torch_device), b.to(amp.device.torch_device))
    error = relative_error(result, a.double() @ b.double()) / amp.precision.u
    amp.observe(f"law/{name}/{length}", error, kind="ratio", unit="u", allowed=MOST)
    if not LEAST / amp.config.tolerance_scale < error < MOST * amp.config.tolerance_scale:
        raise AmpFailure(
            f"{name} over {length} terms has an error of {error:.3g} u under {amp.conditions}",
            label_before="law",
            before=f"{LEAST} to {MOST} u: each argument and the result rounded once",
            now=f"torch {torch.__version__}, {amp.device.describe()}",
            likely="it is not cast" if error < LEAST else "its partial sums are rounded",
        )
