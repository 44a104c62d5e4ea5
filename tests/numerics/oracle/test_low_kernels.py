"""CPU kernels that compute, accumulate or have weights in the low dtype, compared with their models by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.numerics.oracle import formulas
from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.observer import NEARLY_ALL, Observer
from pytest_amp.numerics.oracle.verdict import faults
from tests.numerics.planted import kernel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"]),
]
RELEASE = release_of(torch.__version__)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of the values; 64 values are a whole number of vectors."""
    first, second = x.flatten().chunk(2)
    return first, second.detach()


def image(x: Tensor) -> Tensor:
    return x.view(4, 8, 12, 12)


def last(x: Tensor) -> Tensor:
    return image(x).contiguous(memory_format=torch.channels_last)


def volume(x: Tensor) -> Tensor:
    return x.view(4, 2, 4, 12, 12)


#: Options of the losses of two tensors.
OPTIONS: dict[str, dict[str, Any]] = {"mse_loss": {}, "smooth_l1_loss": {"beta": 0.7}, "huber_loss": {"delta": 0.7}}


def loss(x: Tensor, *, name: str, **options: Any) -> Tensor:
    result: Tensor = getattr(f, name)(*pair(x), **options)
    return result


def product(x: Tensor, *, rows: bool, alpha: float, beta: float) -> Tensor:
    """Return ``addmv`` of a matrix with contiguous rows, or columns."""
    matrix = x.view(64, 72) if rows else x.view(72, 64).t()
    return torch.addmv(x[:64], matrix, x[64:136], alpha=alpha, beta=beta)


def products(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """Return the sum of five products of matrices."""
    first, second = x[:800].view(5, 8, 20), x[800:1600].view(5, 20, 8)
    return torch.addbmm(x[:64].view(8, 8), first, second, alpha=alpha, beta=beta)


BAGS: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "maximum": {"mode": "max"},
    "mean without a row": {"mode": "mean", "padding_idx": 3},
    "sum without a row": {"mode": "sum", "padding_idx": 3},
    "by frequency": {"mode": "sum", "scale_grad_by_freq": True},
}


def bag(x: Tensor, **options: Any) -> Tensor:
    """Return bags of indices, each of which occurs three, four or five times."""
    return f.embedding_bag((torch.arange(128) ** 2 % 61).view(8, 16), x.view(64, 72), **options)


def added(x: Tensor, shape: tuple[int, ...], dim: int, **options: Any) -> Tensor:
    """Add four values at each place of a tensor that is a quarter as long in one dimension."""
    room = torch.ones(shape, dtype=x.dtype)
    many = [size * 4 if axis == dim else size for axis, size in enumerate(shape)]
    return room.index_add(dim, torch.arange(many[dim]) % shape[dim], x.view(many), **options)


def grid(x: Tensor, *, size: tuple[int, ...], aligned: bool) -> Tensor:
    dims = len(size) - 2
    count = size[0] * dims * (dims + 1)
    return f.affine_grid(x[:count].view(size[0], dims, dims + 1), list(size), align_corners=aligned)


def reduced(x: Tensor, *, name: str, reduce: str, include: bool) -> Tensor:
    """Reduce four rows at each of 16 places."""
    rows = x.detach().view(64, 72) / (8 if reduce == "prod" else 1) + 1
    index = torch.arange(64) % 16
    index = index[:, None].expand(64, 72) if name == "scatter_reduce" else index
    result: Tensor = getattr(rows[:16] * 0.7, name)(0, index, rows, reduce, include_self=include)
    return result


#: By computation: the operator that has a model, and a call of it on 4608 low-precision values; all results are equal.
STEPS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    **{
        f"{name}, {reduction}": (name, partial(loss, name=name, reduction=reduction, **options))
        for name, options in OPTIONS.items()
        for reduction in ("none", "mean", "sum")
    },
    "soft margins": ("soft_margin_loss", lambda x: f.soft_margin_loss(x, x.detach().flip(0).sign())),
    "each soft margin": (
        "soft_margin_loss",
        lambda x: f.soft_margin_loss(x, x.detach().flip(0).sign(), reduction="none"),
    ),
    "cross-entropy of logits": (
        "binary_cross_entropy_with_logits",
        lambda x: f.binary_cross_entropy_with_logits(4 * x, x.detach().flip(0).sigmoid(), reduction="none"),
    ),
    "weighted cross-entropy of logits": (
        "binary_cross_entropy_with_logits",
        lambda x: f.binary_cross_entropy_with_logits(
            x, x.detach().sigmoid(), x.detach().abs(), pos_weight=x[:1].detach().abs(), reduction="sum"
        ),
    ),
    "entropy": ("special_entr", lambda x: torch.special.entr(x.abs())),
    "entropy of negative numbers": ("special_entr", lambda x: torch.special.entr(x.detach())),
    "cross product": ("linalg_cross", lambda x: torch.linalg.cross(x.view(-1, 3), x.view(-1, 3).flip(0))),
    "cross product of columns": (
        "linalg_cross",
        lambda x: torch.linalg.cross(x.view(3, -1), x.view(3, -1).flip(1), dim=0),
    ),
    **{
        f"affine grid of {'x'.join(map(str, size))}{', aligned' if aligned else ''}": (
            "affine_grid_generator",
            partial(grid, size=size, aligned=aligned),
        )
        for size in ((4, 8, 13, 12), (3, 2, 2, 64, 37))
        for aligned in (True, False)
    },
    **{
        f"addbmm, {alpha} and {beta}": ("addbmm", partial(products, alpha=alpha, beta=beta))
        for alpha, beta in ((1, 1), (0.3, 0.7))
    },
    "cross-entropy of shares": (
        "binary_cross_entropy_backward",
        lambda x: f.binary_cross_entropy(x.sigmoid(), x.detach().flip(0).sigmoid()),
    ),
    "weighted cross-entropy of shares": (
        "binary_cross_entropy_backward",
        lambda x: f.binary_cross_entropy(x.sigmoid(), x.detach().flip(0).sigmoid(), x.detach().abs(), reduction="sum"),
    ),
    "logit going back": ("logit_backward", lambda x: x.sigmoid().logit()),
    "logit with an end": ("logit_backward", lambda x: x.sigmoid().logit(0.3)),
    "ldexp": ("ldexp.Tensor", lambda x: torch.ldexp(x.detach(), x.detach().flip(0))),
    "a power in place": ("pow_.Scalar", lambda x: x.detach().abs().clone().pow_(2.3)),
    "renorm": ("renorm", lambda x: x.view(64, 72).renorm(2, 0, 1.3)),
    "renorm of columns": ("renorm", lambda x: x.view(64, 72).renorm(1, 1, 1.3)),
    **{
        f"addmv, {alpha} and {beta}, {order}": (
            "addmv",
            partial(product, rows=order == "rows", alpha=alpha, beta=beta),
        )
        for alpha, beta in ((1, 1), (0.3, 0.7), (1, 1.7), (0.3, 1))
        for order in ("rows", "columns")
    },
    "adaptive average": ("_adaptive_avg_pool3d", lambda x: f.adaptive_avg_pool3d(volume(x), (3, 5, 5))),
    "adaptive average of one volume": (
        "_adaptive_avg_pool3d",
        lambda x: f.adaptive_avg_pool3d(volume(x)[0], (2, 4, 1)),
    ),
    "columns": ("col2im", lambda x: f.unfold(image(x), 3)),
    "columns with gaps": ("col2im", lambda x: f.unfold(image(x), 3, padding=2, dilation=2, stride=(1, 2))),
    "fold": ("col2im", lambda x: f.fold(x.view(4, 72, 16), (6, 6), 3)),
    "fold of one image": ("col2im", lambda x: f.fold(x[:1440].view(72, 20), (8, 5), 3, padding=1, stride=(2, 1))),
    "fractional maxima": (
        "fractional_max_pool2d",
        lambda x: f.fractional_max_pool2d(image(x), 3, output_size=9),
    ),
    "fractional maxima of volumes": (
        "fractional_max_pool3d",
        lambda x: f.fractional_max_pool3d(volume(x), (2, 3, 3), output_size=(2, 9, 9)),
    ),
    **{f"a bag, {name}": ("_embedding_bag", partial(bag, **options)) for name, options in BAGS.items()},
    "a weighted bag": (
        "_embedding_bag",
        lambda x: bag(x, mode="sum", per_sample_weights=x[:128].detach().view(8, 16)),
    ),
    "a bag by offsets": (
        "_embedding_bag",
        lambda x: f.embedding_bag(
            torch.arange(99) % 9, x.view(64, 72), torch.tensor([0, 7, 7, 50]), mode="mean", padding_idx=2
        ),
    ),
    **{
        f"{name} of a {reduce}, {'in' if include else 'ex'}clusive": (
            operator,
            partial(reduced, name=name, reduce=reduce, include=include),
        )
        for name, operator in (("scatter_reduce", "scatter_reduce.two"), ("index_reduce", "index_reduce"))
        for reduce in ("mean", "prod")
        for include in (True, False)
    },
    "as_strided": ("index_add_", lambda x: x.as_strided((32, 100), (40, 1))),
    "index_add": ("index_add", lambda x: added(x, (16, 72), 0)),
    "index_add along the last dimension": ("index_add", lambda x: added(x, (64, 18), 1)),
    "index_add in the middle": ("index_add", lambda x: added(x, (8, 18, 8), 1)),
    "index_add times a number": ("index_add", lambda x: added(x, (16, 72), 0, alpha=0.3)),
    "index_add of short rows times a number": ("index_add", lambda x: added(x[:2560], (16, 40), 0, alpha=0.3)),
    "index_add times a number in the middle": ("index_add", lambda x: added(x, (8, 18, 8), 1, alpha=0.3)),
    "index_add of one dimension": ("index_add", lambda x: added(x, (1152,), 0, alpha=0.3)),
}


def observed_by(function: Callable[[Tensor], Tensor], dtype: torch.dtype, seed: int = 0) -> Observer:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4608, generator=generator).to(dtype).requires_grad_()
    observer = Observer("cpu", dtype)
    torch.manual_seed(seed)
    with observer.on({}):
        result = function(x)
        if result.requires_grad:
            torch.autograd.backward(result, torch.randn(result.shape, generator=generator).to(result.dtype))
    assert [call.problem for call in observer.observed_calls if call.problem] == []
    return observer


def expect_equal(observer: Observer, dtype: torch.dtype, *operators: str, least: float = 1.0) -> None:
    """Check that ``operators`` have models, and that a share ``least`` of low results is equal to them."""
    assert faults(observer.observed_calls, dtype) == []
    for operator in operators:
        actual = [call for call in observer.observed_calls if call.operator == f"aten::{operator}"]
        assert actual, operator
        for call in (call for call in observer.observed_calls if call.operator.startswith(f"aten::{operator}")):
            share = min(least, NEARLY_ALL) if call.model.name is ModelName.ONCE else least
            for result in (result for result in call.results if result.dtype == dtype):
                assert result.equal >= share * result.elements, call


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_rounded_where_the_kernel_rounds(name: str, dtype: torch.dtype) -> None:
    operator, function = STEPS[name]
    if name.startswith("smooth_l1_loss") and dtype == torch.float16 and holds_in(RELEASE, since=None, until="2.9"):
        pytest.skip("smooth_l1_loss_backward has no fp16 on a CPU up to torch 2.9")
    if name == "ldexp" and holds_in(RELEASE, since=None, until="2.9"):
        pytest.skip("ldexp is made of operators that are seen")
    if name.startswith("addmv") and name.endswith("rows") and holds_in(RELEASE, since=None, until="2.6"):
        pytest.skip("addmv has another kernel")
    least = (
        NEARLY_ALL if name.startswith(("affine", "addbmm")) else 1.0
    )  # a float32 sum of products may be near a rounding boundary
    expect_equal(observed_by(function, dtype), dtype, operator, least=least)


@pytest.mark.parametrize("name", [name for name in STEPS if name.startswith("addmv")])
def test_first_model_of_a_matrix_and_a_vector_is_that_of_this_cpu(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction uses the first model only; it depends on whether oneDNN has kernels for this CPU."""
    if name.endswith("rows") and holds_in(RELEASE, since=None, until="2.6"):
        pytest.skip("addmv has another kernel")
    monkeypatch.setitem(formulas.OTHER_WAYS, "aten::addmv", ())
    expect_equal(observed_by(STEPS[name][1], dtype), dtype, "addmv")


#: Weights of an interpolation are float32 functions of float32 places: a few fall on the other side of a boundary.
INTERPOLATED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "linear": ("upsample_linear1d", lambda x: f.interpolate(x.view(4, 8, 144), size=333, mode="linear")),
    "a wide image": ("upsample_bilinear2d", lambda x: f.interpolate(image(x), size=(20, 120), mode="bilinear")),
    "a small image": ("upsample_bilinear2d", lambda x: f.interpolate(image(x), size=(20, 30), mode="bilinear")),
    "channels last": ("upsample_bilinear2d", lambda x: f.interpolate(last(x), size=(70, 80), mode="bilinear")),
    "aligned": (
        "upsample_bilinear2d",
        lambda x: f.interpolate(image(x), size=(70, 80), mode="bilinear", align_corners=True),
    ),
    "by a factor": ("upsample_bilinear2d", lambda x: f.interpolate(image(x), scale_factor=7.3, mode="bilinear")),
    "bicubic": ("upsample_bicubic2d", lambda x: f.interpolate(image(x), size=(20, 30), mode="bicubic")),
    "bicubic, channels last": ("upsample_bicubic2d", lambda x: f.interpolate(last(x), size=(20, 31), mode="bicubic")),
    "trilinear": ("upsample_trilinear3d", lambda x: f.interpolate(volume(x), size=(9, 14, 11), mode="trilinear")),
    "trilinear, channels last": (
        "upsample_trilinear3d",
        lambda x: f.interpolate(
            x.view(1, 8, 4, 12, 12).contiguous(memory_format=torch.channels_last_3d), size=(9, 14, 11), mode="trilinear"
        ),
    ),
    "nearest": ("upsample_nearest1d", lambda x: f.interpolate(x.view(4, 8, 144), scale_factor=2.3)),
    "nearest to a size": ("upsample_nearest1d", lambda x: f.interpolate(x.view(4, 8, 144), size=1000)),
    "nearest, exact": (
        "_upsample_nearest_exact1d",
        lambda x: f.interpolate(x.view(4, 8, 144), scale_factor=2.3, mode="nearest-exact"),
    ),
    "nearest of an image": ("upsample_nearest2d", lambda x: f.interpolate(image(x), size=(41, 100))),
    "nearest of a volume": ("upsample_nearest3d", lambda x: f.interpolate(volume(x), scale_factor=2.3)),
}


@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolation_weights_have_the_low_dtype(name: str, dtype: torch.dtype) -> None:
    operator, function = INTERPOLATED[name]
    expect_equal(observed_by(function, dtype), dtype, operator, least=0.97 if dtype == torch.float16 else 0.985)


def test_nearest_pixel_is_selected_in_float32(dtype: torch.dtype) -> None:
    """The pixel is determined in float32, also with float32 tensors: float64 reads another one at integer places."""
    del dtype
    expect_equal(
        observed_by(lambda x: f.interpolate(x.float().view(4, 8, 144), size=1000), torch.bfloat16), torch.bfloat16
    )


def scaled(x: Tensor, *, scale: float, approximate: str) -> Tensor:
    return f.gelu(scale * x, approximate=approximate)


#: Functions in which terms cancel in float32.
CANCELLING: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    **{
        f"gelu of {scale}, {approximate}": ("gelu", partial(scaled, scale=scale, approximate=approximate))
        for scale in (1, 4, 15)
        for approximate in ("none", "tanh")
    },
    "gelu with gaps": ("gelu", lambda x: f.gelu(4 * x.view(32, 144)[:, ::2])),
    "sinc": ("sinc", lambda x: torch.sinc(15 * x)),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_cancellation_in_float32_is_modelled(name: str, dtype: torch.dtype) -> None:
    operator, function = CANCELLING[name]
    observer = observed_by(function, dtype)
    expect_equal(observer, dtype, operator, least=0.99)
    actual = [call.model.name for call in observer.observed_calls if call.operator == f"aten::{operator}"]
    assert set(actual) == {ModelName.IN_FLOAT32}


@pytest.mark.parametrize("shape", [(64, 24, 20, 7), (5, 3, 64, 40)])
def test_bilinear_layer_rounds_its_first_product(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rows, first, second, features = shape
    generator = torch.Generator().manual_seed(0)
    a, b, weight = (
        torch.randn(sizes, generator=generator).to(dtype).requires_grad_()
        for sizes in ((rows, first), (rows, second), (features, first, second))
    )
    observer = Observer("cpu", dtype)
    with observer.on({}):
        result = f.bilinear(a, b, weight)
        torch.autograd.backward(result, torch.randn(result.shape, generator=generator).to(dtype))
    assert faults(observer.observed_calls, dtype) == []
    actual = [
        result for call in observer.observed_calls if call.operator == "aten::_trilinear" for result in call.results
    ]
    assert len(actual) > 1
    assert all(result.equal >= NEARLY_ALL * result.elements for result in actual), actual


@pytest.mark.parametrize("operator", ["gelu", "gelu_backward"])
def test_broken_float32_kernel_is_a_fault(operator: str, dtype: torch.dtype) -> None:
    """Plant an error of two per cent in the low dtype and in float32 alike."""

    def broken(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result if result.dtype == torch.float64 else result * 1.02

    with kernel(operator, broken):
        actual = faults(observed_by(lambda x: f.gelu(4 * x), dtype).observed_calls, dtype)
    assert [call.operator for call in actual] == [operator]
