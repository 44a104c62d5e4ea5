"""Special tensors: subclasses, sparse, nested, empty, scalar, complex, and other memory formats."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_calls

from .state import expect_dtype


class Named(torch.Tensor):
    """Subclass by ``__torch_function__``, which torch gives to every subclass."""


class Wrapper(torch.Tensor):
    """Tensor around another one: its ``__torch_dispatch__`` sees the calls that autocast has passed on."""

    within: torch.Tensor

    @staticmethod
    def of(inner: torch.Tensor) -> Wrapper:
        """Return ``inner``, wrapped."""
        make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001  # the call that torch's documentation recommends
        result: Wrapper = make(Wrapper, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride())
        result.within = inner
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        def unwrap(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(unwrap(part) for part in value)
            return value.within if isinstance(value, Wrapper) else value

        def wrap(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(wrap(part) for part in value)
            return Wrapper.of(value) if isinstance(value, torch.Tensor) else value

        return wrap(func(*unwrap(args), **{key: unwrap(value) for key, value in (kwargs or {}).items()}))


#: By the dtype of the result: low ("l") or float32 ("w").
CALLS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "mm": ("l", lambda t: torch.mm(t, t)),
    "@": ("l", lambda t: t @ t),
    "linear": ("l", lambda t: functional.linear(t, t, t[0])),
    "bmm": ("l", lambda t: torch.bmm(t[None], t[None])),
    "addmm": ("l", lambda t: torch.addmm(t, t, t)),
    "conv1d": ("l", lambda t: functional.conv1d(t[None], t[:, :, None])),
    "einsum": ("l", lambda t: torch.einsum("ij,jk->ik", t, t)),
    "attention": ("l", lambda t: functional.scaled_dot_product_attention(t[None, None], t[None, None], t[None, None])),
    "softmax": ("w", lambda t: t.softmax(-1)),
    "relu": ("w", torch.relu),
    "mse_loss": ("w", lambda t: functional.mse_loss(t, t + 1)),
}


@pytest.mark.parametrize("kind", [Named, Wrapper])
@pytest.mark.parametrize("call", CALLS)
def test_subclasses_are_cast_as_tensors_are(amp: SuiteAmp, call: str, kind: type[torch.Tensor]) -> None:
    """Results have the dtype and the bits of a plain tensor's, and the subclass is preserved."""
    plain = torch.randn(4, 4, device=amp.device.torch_device)
    expected, function = CALLS[call]
    result = plain.as_subclass(Named) if kind is Named else Wrapper.of(plain)
    with amp.autocast():
        plain_result, actual = function(plain), function(result)
    dtype = {"l": amp.dtype, "w": torch.float32}[expected]
    expect_dtype(amp, f"{call} of a {kind.__name__}", actual.dtype, dtype, likely="subclasses go around autocast")
    assert type(actual) is kind
    values = actual.within if isinstance(actual, Wrapper) else actual.as_subclass(torch.Tensor)
    assert torch.equal(values, plain_result)


@pytest.mark.parametrize("call", CALLS)
def test_tensors_of_inference_mode_are_cast_outside_of_it(amp: SuiteAmp, call: str) -> None:
    """Evaluate under ``no_grad`` with tensors of inference mode, like a model that was loaded there."""
    plain = torch.randn(4, 4, device=amp.device.torch_device)
    with torch.inference_mode():
        result = plain.clone()
    expected, function = CALLS[call]
    with torch.no_grad(), amp.autocast():
        plain_result, actual = function(plain), function(result)
    dtype = {"l": amp.dtype, "w": torch.float32}[expected]
    expect_dtype(
        amp, f"{call} of inference", actual.dtype, dtype, likely="tensors without a version go around autocast"
    )
    assert torch.equal(actual, plain_result)


class NamedParameter(nn.Parameter):
    """Parameter subclass of a project."""


def test_a_parameter_of_a_subclass_is_cached_and_trained(amp: SuiteAmp) -> None:
    layer = nn.Linear(8, 24, bias=False)
    layer.weight = NamedParameter(layer.weight.detach())
    layer.to(amp.device.torch_device)
    batch = torch.randn(4, 8, device=amp.device.torch_device)
    with recorded_calls() as calls, amp.autocast():
        result = layer(layer(batch)[:, :8])
    assert sum(call.operator == "aten::_to_copy" and call.tensors[:1] == ("float32[24, 8]",) for call in calls) == 1
    result.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("order", ["mode in region", "region in mode"])
def test_a_function_mode_does_not_hide_the_region(amp: SuiteAmp, order: str) -> None:
    """Modes such as ``torch.set_default_device``, a profiler or a logger leave the region on."""

    class Passes(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    first, second = (amp.autocast(), Passes()) if order == "mode in region" else (Passes(), amp.autocast())
    with first, second:
        actual = torch.mm(matrix, matrix).dtype
    assert actual is amp.dtype


SPARSE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "@": lambda s, d: s @ d,
    "addmm": lambda s, d: torch.addmm(d, s, d),
    "sparse.mm": torch.sparse.mm,
    "linear": lambda s, d: functional.linear(d, s),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "layout",
    ["coo", "csr"],
)
@pytest.mark.parametrize("product", SPARSE)
def test_products_of_sparse_matrices(amp: SuiteAmp, product: str, layout: str) -> None:
    """Sparse products are cast like dense ones and round as often: with one value in a row the sum is exact."""
    dense = torch.randn(4, 4, device=amp.device.torch_device)
    turn = torch.eye(4, device=amp.device.torch_device)[[2, 0, 3, 1]]
    sparse = turn.to_sparse() if layout == "coo" else turn.to_sparse_csr()
    with amp.autocast():
        actual = SPARSE[product](sparse, dense)
    expect_dtype(amp, f"{product} of {layout}", actual.dtype, amp.dtype, likely="sparse tensors go around autocast")
    low, matrix = dense.to(amp.dtype).double(), turn.double()
    exact = low @ matrix.T if product == "linear" else matrix @ low + (low if product == "addmm" else 0)
    assert torch.equal(actual, exact.to(amp.dtype)), (
        f"{product} of {layout} has an error of {(actual - exact).abs().max():.2g}"
    )


NESTED: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "linear": ("l", lambda t: functional.linear(t, torch.ones(4, 4, device=t.device), torch.ones(4, device=t.device))),
    "softmax": ("w", lambda t: torch.softmax(t, -1)),
    "relu": ("w", functional.relu),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
@pytest.mark.parametrize("call", NESTED)
def test_nested_tensors_are_cast(amp: SuiteAmp, call: str, layout: torch.layout) -> None:
    rows = [torch.randn(size, 4, device=amp.device.torch_device) for size in (2, 3)]
    nested = torch.nested.nested_tensor(rows, layout=layout)
    expected, function = NESTED[call]
    with amp.autocast():
        actual, plain_result = function(nested), function(rows[0])
    dtype = {"l": amp.dtype, "w": torch.float32}[expected]
    expect_dtype(
        amp, f"{call} of a nested tensor, {layout}", actual.dtype, dtype, likely="nested tensors go around autocast"
    )
    assert torch.allclose(actual.unbind()[0], plain_result, rtol=2 * amp.precision.u, atol=2 * amp.precision.u)


#: All back ends except cuDNN's, which torch prefers on some cards.
_OTHERS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
_ON_CUDA = pytest.mark.amp(devices=["cuda"])


def _attention_of_nothing(make: Callable[..., torch.Tensor], *kernels: SDPBackend) -> torch.Tensor:
    with sdpa_kernel(list(kernels)):
        return functional.scaled_dot_product_attention(make(0, 2, 4, 8), make(0, 2, 4, 8), make(0, 2, 4, 8))


#: Products of an empty input, and of a row or a scalar.
EMPTY: dict[str, Callable[[Callable[..., torch.Tensor]], torch.Tensor]] = {
    "linear": lambda t: functional.linear(t(0, 4), t(3, 4), t(3)),
    "mm": lambda t: torch.mm(t(0, 4), t(4, 3)),
    "mm over nothing": lambda t: torch.mm(t(2, 0), t(0, 3)),
    "matmul": lambda t: t(0, 2, 4) @ t(4, 3),
    "bmm": lambda t: torch.bmm(t(0, 2, 4), t(0, 4, 3)),
    "baddbmm": lambda t: torch.baddbmm(t(0, 2, 3), t(0, 2, 4), t(0, 4, 3)),
    "addmm": lambda t: torch.addmm(t(3), t(0, 4), t(4, 3)),
    "conv1d": lambda t: functional.conv1d(t(0, 3, 8), t(4, 3, 3)),
    "conv2d": lambda t: functional.conv2d(t(0, 3, 8, 8), t(4, 3, 3, 3)),
    "conv3d": lambda t: functional.conv3d(t(0, 3, 4, 4, 4), t(4, 3, 3, 3, 3)),
    "attention": lambda t: _attention_of_nothing(t, *_OTHERS),
    "attention by cuDNN": lambda t: _attention_of_nothing(t, SDPBackend.CUDNN_ATTENTION),
    "linear of a row": lambda t: functional.linear(t(4), t(3, 4), t(3)),
    "linear to a scalar": lambda t: functional.linear(t(4), t(4)),
    "matmul of rows": lambda t: t(4) @ t(4),
    "matmul with a row": lambda t: t(3, 4) @ t(4),
    "row with a matrix": lambda t: t(4) @ t(4, 3),
    "conv1d without a batch": lambda t: functional.conv1d(t(3, 8), t(4, 3, 3)),
    "conv2d without a batch": lambda t: functional.conv2d(t(3, 8, 8), t(4, 3, 3, 3)),
}


@pytest.mark.parametrize("call", [pytest.param(c, marks=_ON_CUDA if "cuDNN" in c else ()) for c in EMPTY])
def test_products_of_nothing_and_of_rows_are_low(amp: SuiteAmp, call: str) -> None:
    """An empty batch, such as the last one of an epoch, has the same dtype as every other."""

    def make(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=amp.device.torch_device, requires_grad=True)

    with amp.autocast():
        result = EMPTY[call](make)
    expect_dtype(amp, call, result.dtype, amp.dtype, likely="empty or small arguments go around autocast")
    result.float().sum().backward()


@pytest.mark.parametrize("size", [0, 1, 3])
def test_joining_any_number_of_float32_tensors_is_float32(amp: SuiteAmp, size: int) -> None:
    """``cat`` and ``stack`` of one tensor, empty tensors and none promote to the widest dtype, here float32."""
    float32 = torch.ones(2, device=amp.device.torch_device)
    empty = torch.ones(0, device=amp.device.torch_device)
    low = float32.to(amp.dtype)
    with amp.autocast():
        actual = {
            "cat": torch.cat([float32] * size + [empty]).dtype,
            "stack": torch.stack([float32] * (size + 1)).dtype,
            "cat of low": torch.cat([low] * size + [low]).dtype,
            "cat of both": torch.cat([low] * size + [float32]).dtype,
            "hstack": torch.hstack([float32] * (size + 1)).dtype,
            "scalars": torch.stack([float32[0]] * (size + 1)).dtype,
        }
    expected = {**dict.fromkeys(actual, torch.float32), "cat of low": amp.dtype}
    assert actual == expected


COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mm": lambda t: torch.mm(t, t),
    "@": lambda t: t @ t,
    "linear": lambda t: functional.linear(t, t),
    "conv1d": lambda t: functional.conv1d(t[None], t[:, :, None]),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t, t),
    "fft": torch.fft.fft,
    "cat": lambda t: torch.cat([t, t]),
    "inverse": torch.linalg.inv,
    "abs": lambda t: torch.complex(t.abs(), t.angle()),
}


@pytest.mark.parametrize("call", COMPLEX)
def test_complex_numbers_are_left_alone(amp: SuiteAmp, call: str) -> None:
    values = torch.randn(4, 4, dtype=torch.complex64, device=amp.device.torch_device)
    expected = COMPLEX[call](values)
    with amp.autocast():
        actual = COMPLEX[call](values)
    assert actual.dtype is torch.complex64, f"{call} of complex64 became {dtype_name(actual.dtype)}"
    assert torch.equal(actual, expected)


def _pool(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    pool: Any = functional.max_pool2d if size == 4 else functional.max_pool3d
    return lambda t: pool(t, 2)


def _channels_last(layer: nn.Module) -> nn.Module:
    """Return a layer with its weight in that memory format, whatever its inputs have."""
    layout = torch.channels_last if layer.get_parameter("weight").dim() == 4 else torch.channels_last_3d
    moved: Any = layer.to
    return moved(memory_format=layout)  # type: ignore[no-any-return]


CONVOLUTIONS: dict[str, Callable[[int], nn.Module]] = {
    "conv": lambda n: (nn.Conv2d if n == 4 else nn.Conv3d)(3, 4, 3, padding=1),
    "grouped conv": lambda n: (nn.Conv2d if n == 4 else nn.Conv3d)(3, 3, 3, groups=3),
    "transposed conv": lambda n: (nn.ConvTranspose2d if n == 4 else nn.ConvTranspose3d)(3, 4, 3),
}


def _with_its_weight_channels_last(kind: str) -> Callable[[int], nn.Module]:
    return lambda dimensions: _channels_last(CONVOLUTIONS[kind](dimensions))


IMAGES: dict[str, Callable[[int], Callable[[torch.Tensor], torch.Tensor]]] = {
    **CONVOLUTIONS,
    **{f"{kind}, weight channels last": _with_its_weight_channels_last(kind) for kind in CONVOLUTIONS},
    "relu": lambda _: functional.relu,
    "max_pool": _pool,
    "batch_norm": lambda n: (nn.BatchNorm2d if n == 4 else nn.BatchNorm3d)(3),
    "interpolate": lambda _: lambda t: functional.interpolate(t, scale_factor=2),
    "cat": lambda _: lambda t: torch.cat([t, t]),
    "prelu": lambda _: nn.PReLU(3),
    "dropout": lambda _: lambda t: functional.dropout(t, 0.5),
}


@pytest.mark.parametrize("order", ["channels_last", "channels_last_3d", "contiguous"])
@pytest.mark.parametrize("kind", IMAGES)
def test_the_memory_format_is_that_of_casts_by_hand(amp: SuiteAmp, kind: str, order: str) -> None:
    """Casts keep the order of dimensions; so do results and gradients, as far as the same kernel does without casts."""
    ndim = 5 if order == "channels_last_3d" else 4
    layout = torch.contiguous_format if order == "contiguous" else getattr(torch, order)
    function: Any = IMAGES[kind](ndim)
    manual = function
    if isinstance(function, nn.Module):
        function.to(amp.device.torch_device)
        manual = copy.deepcopy(function).to(amp.dtype) if "conv" in kind else function
    values = torch.randn(2, 3, *[6] * (ndim - 2)).to(amp.device.torch_device).to(memory_format=layout)
    values.requires_grad_()
    cast = values.to(amp.dtype)
    assert cast.is_contiguous(memory_format=layout), "a cast rearranges an image"
    expected = manual(cast if "conv" in kind else values)
    with amp.autocast():
        actual = function(values)
    assert actual.stride() == expected.stride(), f"{kind} of {order} images answers in another memory format"
    gradients = [torch.autograd.grad(result.float().sum(), values)[0].stride() for result in (actual, expected)]
    assert gradients[0] == gradients[1], f"the gradient of {kind} of {order} images is rearranged"
