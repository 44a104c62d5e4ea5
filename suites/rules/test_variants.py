"""Products with non-default arguments (stride, dilation, groups, padding, scale, shape) are cast like the defaults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

Shapes = tuple[tuple[int, ...], ...]
Call = Callable[..., torch.Tensor]

_ROW: Shapes = ((2, 4, 9), (6, 4, 3), (6,))
_IMAGE: Shapes = ((2, 4, 9, 9), (6, 4, 3, 3), (6,))
_VOLUME: Shapes = ((2, 4, 6, 6, 6), (6, 4, 3, 3, 3), (6,))
_BACK_ROW: Shapes = ((2, 6, 5), (6, 4, 3), (4,))
_BACK_IMAGE: Shapes = ((2, 6, 5, 5), (6, 4, 3, 3), (4,))
_BACK_VOLUME: Shapes = ((2, 6, 4, 4, 4), (6, 4, 3, 3, 3), (4,))


def _grouped(shapes: Shapes, *, back: bool = False) -> Shapes:
    """Halve the weight's channels: two groups."""
    x, (out, inner, *kernel), _ = shapes
    return (x, (out, inner // 2, *kernel), (inner if back else out,))


def _convolutions() -> dict[str, tuple[Shapes, Call]]:
    variants: dict[str, tuple[Shapes, Call]] = {}
    forward: dict[str, tuple[Call, Shapes]] = {
        "conv1d": (functional.conv1d, _ROW),
        "conv2d": (functional.conv2d, _IMAGE),
        "conv3d": (functional.conv3d, _VOLUME),
    }
    for name, (function, shapes) in forward.items():
        options: dict[str, dict[str, object]] = {
            "stride": {"stride": 2},
            "padding": {"padding": 1},
            "dilation": {"dilation": 2},
            "same": {"padding": "same"},
            "valid": {"padding": "valid"},
            "everything": {"stride": 2, "padding": 2, "dilation": 2},
        }
        for option, keywords in options.items():
            variants[f"{name} {option}"] = shapes, lambda x, w, b, f=function, k=keywords: f(x, w, b, **k)
        variants[f"{name} groups"] = _grouped(shapes), lambda x, w, b, f=function: f(x, w, b, groups=2)
        variants[f"{name} groups, stride"] = (
            _grouped(shapes),
            lambda x, w, b, f=function: f(x, w, b, groups=2, stride=2),
        )
        variants[f"{name} no bias"] = shapes, lambda x, w, _, f=function: f(x, w)
    back: dict[str, tuple[Call, Shapes]] = {
        "conv_transpose1d": (functional.conv_transpose1d, _BACK_ROW),
        "conv_transpose2d": (functional.conv_transpose2d, _BACK_IMAGE),
        "conv_transpose3d": (functional.conv_transpose3d, _BACK_VOLUME),
    }
    for name, (function, shapes) in back.items():
        options = {
            "stride": {"stride": 2},
            "output_padding": {"stride": 2, "output_padding": 1},
            "dilation": {"dilation": 2},
            "everything": {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2},
        }
        for option, keywords in options.items():
            variants[f"{name} {option}"] = shapes, lambda x, w, b, f=function, k=keywords: f(x, w, b, **k)
        grouped = _grouped(shapes, back=True)
        variants[f"{name} groups"] = (
            (*grouped[:2], (4,)),
            lambda x, w, b, f=function: f(x, w, b, groups=2),
        )
    return variants


def _add(function: Call, **keywords: float) -> Call:
    return lambda c, a, b: function(c, a, b, **keywords)


_PRODUCTS: dict[str, tuple[Shapes, Call]] = {
    "linear of a row": (((8,), (6, 8), (6,)), functional.linear),
    "linear of 4 dimensions": (((2, 3, 4, 8), (6, 8), (6,)), functional.linear),
    "linear without bias": (((3, 8), (6, 8)), functional.linear),
    "linear, large": (((130, 520), (260, 520), (260,)), functional.linear),
    # Sizes that are not multiples of eight, which 16-bit kernels prefer, or of four.
    "linear of width 20": (((3, 20), (12, 20), (12,)), functional.linear),
    "linear of width 21": (((3, 21), (7, 21), (7,)), functional.linear),
    "matmul of width 21": (((3, 5, 21), (3, 21, 7)), torch.matmul),
    "chain_matmul": (((4, 8), (8, 5), (5, 3)), torch.chain_matmul),
    "linear of one row": (((1, 8), (6, 8), (6,)), functional.linear),
    "matmul, vector and vector": (((8,), (8,)), torch.matmul),
    "matmul, matrix and vector": (((4, 8), (8,)), torch.matmul),
    "matmul, vector and matrix": (((8,), (8, 4)), torch.matmul),
    "matmul, batch and matrix": (((3, 4, 8), (8, 5)), torch.matmul),
    "matmul, matrix and batch": (((4, 8), (3, 8, 5)), torch.matmul),
    "matmul, broadcast batches": (((2, 1, 4, 8), (3, 8, 5)), torch.matmul),
    "matmul, batch and vector": (((3, 4, 8), (8,)), torch.matmul),
    "matmul, large": (((300, 300), (300, 300)), torch.matmul),
    "matmul of a transposed": (((8, 4), (8, 5)), lambda a, b: a.t() @ b),
    "matmul of strides": (((8, 16), (16, 5)), torch.matmul),
    "addmm beta=0": (((4, 5), (4, 8), (8, 5)), _add(torch.addmm, beta=0)),
    "addmm alpha, beta": (((4, 5), (4, 8), (8, 5)), _add(torch.addmm, beta=0.5, alpha=2)),
    "addmm of a broadcast": (((5,), (4, 8), (8, 5)), torch.addmm),
    "baddbmm beta=0": (((3, 4, 5), (3, 4, 8), (3, 8, 5)), _add(torch.baddbmm, beta=0)),
    "baddbmm alpha, beta": (((3, 4, 5), (3, 4, 8), (3, 8, 5)), _add(torch.baddbmm, beta=0.5, alpha=2)),
    "addbmm beta=0": (((4, 5), (3, 4, 8), (3, 8, 5)), _add(torch.addbmm, beta=0)),
    "einsum of two": (((3, 4, 8), (8, 5)), lambda a, b: torch.einsum("bij,jk->bik", a, b)),
    "einsum of three": (((4, 8), (8, 5), (5, 3)), lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c)),
    "einsum, a list": (((4, 8), (8, 5), (5, 3)), lambda *of: torch.einsum("ij,jk,kl->il", list(of))),
    "einsum, traced": (((3, 4, 8), (3, 4, 8)), lambda a, b: torch.einsum("bij,bij->b", a, b)),
    "tensordot": (((3, 4, 8), (4, 8, 5)), lambda a, b: torch.tensordot(a, b, dims=2)),
    "multi_dot": (((4, 8), (8, 5), (5, 3)), lambda *of: torch.linalg.multi_dot(of)),
    "inner": (((4, 8), (5, 8)), torch.inner),
    # The same products in different notation
    "tensordot of axes": (((3, 4, 8), (8, 4, 5)), lambda a, b: torch.tensordot(a, b, dims=([1, 2], [1, 0]))),
    "tensordot of one axis": (((4, 8), (8, 5)), lambda a, b: torch.tensordot(a, b, dims=1)),
    "multi_dot of four": (((4, 8), (8, 5), (5, 3), (3, 6)), lambda *of: torch.linalg.multi_dot(of)),
    "einsum of an ellipsis": (((3, 4, 8), (3, 8, 5)), lambda a, b: torch.einsum("...ij,...jk->...ik", a, b)),
    "linalg.matmul": (((3, 4, 8), (3, 8, 5)), torch.linalg.matmul),
    "@": (((4, 8), (8, 5)), lambda a, b: a @ b),
    "Tensor.matmul": (((4, 8), (8, 5)), lambda a, b: a.matmul(b)),
    "Tensor.mm": (((4, 8), (8, 5)), lambda a, b: a.mm(b)),
    "Tensor.bmm": (((3, 4, 8), (3, 8, 5)), lambda a, b: a.bmm(b)),
    "Tensor.addmm": (((4, 5), (4, 8), (8, 5)), lambda c, a, b: c.addmm(a, b)),
    "Tensor.baddbmm": (((3, 4, 5), (3, 4, 8), (3, 8, 5)), lambda c, a, b: c.baddbmm(a, b)),
}

VARIANTS = {**_convolutions(), **_PRODUCTS}
#: Views that are the arguments. Manual casts have to cast the views, as autocast does, and not what they are taken of:
#: a product of other strides may add in another order.
_VIEWS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "matmul of strides": lambda a, b: (a[:, ::2], b[::2])
}
#: CUDA's list promotes tensordot to the widest of its arguments, and ``inner`` of matrices is one (LinearAlgebra.cpp).
_WIDE_ON_CUDA = ("tensordot", "inner")

#: Where autocast has no rule for it, the function itself checks the dtypes of its arguments (LinearAlgebra.cpp).
_LOOKS = ("tensordot", "inner", "multi_dot", "chain_matmul")


def _dtype(amp: SuiteAmp, variant: str) -> torch.dtype:
    """Return the dtype in which a variant of float32 tensors is computed."""
    return torch.float32 if amp.device.type == "cuda" and variant.startswith(_WIDE_ON_CUDA) else amp.dtype


def _values(amp: SuiteAmp, shapes: Shapes) -> list[torch.Tensor]:
    torch.manual_seed(amp.config.seed)
    return [torch.randn(shape).div(2).to(amp.device.torch_device).requires_grad_() for shape in shapes]


#: Modes in which a product is computed.
_MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def _run(amp: SuiteAmp, variant: str, *, manual: bool, mode: str) -> list[torch.Tensor]:
    """Return the result and the gradients of the arguments."""
    shapes, call = VARIANTS[variant]
    values = _values(amp, shapes)
    with _MODES[mode](), amp.autocast(enabled=not manual):
        args = _VIEWS[variant](*values) if variant in _VIEWS else values
        result = call(*(arg.to(_dtype(amp, variant)) for arg in args)) if manual else call(*args)
    if mode != "grad":
        return [result]
    weights = torch.linspace(-1, 1, result.numel(), device=result.device).view_as(result)
    gradients = torch.autograd.grad((result.float() * weights).sum(), values, allow_unused=True)
    return [result.detach(), *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_cast_as_the_plain_product(amp: SuiteAmp, variant: str, mode: str) -> None:
    """Variants are low-precision unless promoted, and bitwise equal to manual casts, forward and backward."""
    dtype = _dtype(amp, variant)
    actual, manual = (_run(amp, variant, manual=manual, mode=mode) for manual in (False, True))
    amp.observe(f"{variant}, {mode}", dtype_name(actual[0].dtype), kind="dtype")
    different = [
        i
        for i, (a, b) in enumerate(zip(actual, manual, strict=True))
        if a.dtype is not b.dtype or not torch.equal(a, b)
    ]
    if actual[0].dtype is not dtype or different:
        raise AmpFailure(
            f"{variant} on {amp.target.id} is not cast as the plain product is",
            label_before="rule",
            before=f"{dtype}, and the bits of manual casts",
            now=f"{actual[0].dtype}; results that differ: {different} (0 is the result, then the gradients)",
            likely="the autocast kernel of an overload, or of one of its arguments, is gone or wrong",
        )


def _in_a_region(amp: SuiteAmp, call: Call, values: list[torch.Tensor]) -> torch.Tensor | None:
    """Return None if the call refuses its dtypes, as functions do that check them before autocast casts."""
    try:
        with amp.autocast():
            return call(*values)
    except RuntimeError as error:
        if "same dtype" not in str(error):
            raise
        return None


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_mixed_arguments_are_cast_alike(amp: SuiteAmp, variant: str) -> None:
    """Pass each argument alone in the low dtype, like the output of a layer: refused, or cast as manual casts do."""
    shapes, call = VARIANTS[variant]
    values, dtype = _values(amp, shapes), _dtype(amp, variant)
    refused = []
    for low in range(len(values)):
        mixed = [value.detach().to(amp.dtype) if i == low else value.detach() for i, value in enumerate(values)]
        actual = _in_a_region(amp, call, mixed)
        refused.append(actual is None)
        if actual is None:
            continue
        expected = call(*(value.to(dtype) for value in mixed))
        if actual.dtype is not dtype or not torch.equal(actual, expected):
            raise AmpFailure(
                f"{variant} on {amp.target.id}, its argument {low} in {amp.precision.dtype_name}, is not cast",
                label_before="rule",
                before=f"{dtype}, and the bits of manual casts",
                now=f"{actual.dtype}" + ("" if actual.dtype is not dtype else ", and different bits"),
                likely="a function made of products casts to one dtype itself, and leaves nothing to autocast",
            )
    amp.observe(f"{variant}, mixed", "refused" if any(refused) else "cast", kind="state")
    assert not any(refused) or variant.startswith(_LOOKS), f"{variant} refuses mixed arguments"
