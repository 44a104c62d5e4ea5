"""Weights stored in float8 are rounded once in each kind of layer, and products use exactly their values."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.formats import FLOAT8_E4M3FN, FLOAT8_E5M2, FORMATS, Format, converted
from pytest_amp.numerics import relative_error
from pytest_amp.run.targets import Target
from pytest_amp.torch_private import scaled_product

from ..formats.numbers import expect_rounded

ROWS, COLUMNS = 48, 80


def float8(_target: Target) -> Iterable[str]:
    """Return the formats of eight bits."""
    return (FLOAT8_E4M3FN.name, FLOAT8_E5M2.name)


pytestmark = pytest.mark.amp_parametrize("name", float8)


def _layer(weight: Tensor) -> nn.Linear:
    """Return a layer with ``weight``, which requires no gradient: float8 has none."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).requires_grad_(requires_grad=False)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return layer


def _loaded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    layer = _layer(torch.zeros_like(weight)).to(dtype)
    layer.load_state_dict({"weight": weight})
    return layer.weight


def _buffer(weight: Tensor, dtype: torch.dtype) -> Tensor:
    layer = nn.Module()
    layer.register_buffer("weight", torch.zeros_like(weight, dtype=dtype))
    retained = layer.get_buffer("weight")
    retained.copy_(weight)
    return retained


def _from_a_file(weight: Tensor, dtype: torch.dtype) -> Tensor:
    file = io.BytesIO()
    torch.save(_layer(weight).to(dtype).state_dict(), file)
    file.seek(0)
    actual: Tensor = torch.load(file, weights_only=True)["weight"]
    return actual


#: Ways to give a layer float8 weights.
WAYS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "Module.to": lambda w, dtype: _layer(w).to(dtype).weight,
    "Module.type": lambda w, dtype: _layer(w).type(dtype).weight,
    "a model of layers": lambda w, dtype: nn.Sequential(nn.Sequential(_layer(w))).to(dtype).get_parameter("0.0.weight"),
    "a parameter": lambda w, dtype: nn.Parameter(w.clone()).to(dtype),
    "its data": lambda w, dtype: _layer(w).weight.data.to(dtype),
    "a new parameter": lambda w, dtype: nn.Parameter(w.to(dtype), requires_grad=False),
    "load_state_dict": _loaded,
    "a buffer": _buffer,
    "a file": _from_a_file,
    "a copy": lambda w, dtype: copy.deepcopy(_layer(w).to(dtype)).weight,
    "columns": lambda w, dtype: nn.Parameter(w.t().contiguous().t(), requires_grad=False).to(dtype),
}


def _scaled(amp: SuiteAmp, form: Format, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return weights whose largest value is the largest of the format, as scales are chosen."""
    weight = torch.randn(ROWS, COLUMNS, device=amp.device.torch_device) / COLUMNS**0.5
    scaled: Tensor = weight * (form.max / weight.abs().amax())
    return scaled.clamp(-form.max, form.max).to(dtype)


def _values(weight: Tensor, form: Format, amp: SuiteAmp) -> Tensor:
    """Decode the bits of ``weight`` by the format's definition."""
    return torch.from_numpy(converted(weight, form)).to(amp.device.torch_device)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a region"])
@pytest.mark.parametrize("source", ["float32", "low"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_are_rounded_once(amp: SuiteAmp, name: str, way: str, source: str, *, inside: bool) -> None:
    """Round to the nearest value of the format, from float32 weights and from those of a low-precision model."""
    form = FORMATS[name]
    weight = _scaled(amp, form, torch.float32 if source == "float32" else amp.dtype)
    with torch.no_grad(), amp.autocast(enabled=inside):
        actual = WAYS[way](weight.to(amp.device.torch_device), form.dtype)
    assert actual.dtype is form.dtype
    expect_rounded(amp, form, weight.double().cpu().numpy().ravel(), actual.detach().reshape(-1), way=way)


#: Each element is rounded once, by u at most, and the error of the float32 sum of 80 terms is a hundredth of that.
ONCE = 1.01


@pytest.mark.parametrize("cast", ["by hand", "by autocast"])
def test_a_layer_multiplies_by_their_values(amp: SuiteAmp, name: str, cast: str) -> None:
    """The autocast dtype represents all float8 values, so a product is rounded once: float8 costs nothing more."""
    form = FORMATS[name]
    weight = _scaled(amp, form).to(form.dtype) if form is FLOAT8_E4M3FN else (_scaled(amp, form) / 256).to(form.dtype)
    x = torch.randn(32, COLUMNS, device=amp.device.torch_device).to(amp.dtype)
    with torch.no_grad(), amp.autocast():
        result = f.linear(x, weight.to(amp.dtype) if cast == "by hand" else weight)
    assert result.dtype is amp.dtype
    error = relative_error(result, x.double() @ _values(weight, form, amp).t()) / amp.precision.u
    amp.observe(f"float8_weights/{name}/{cast}", error, kind="ratio", unit="u", allowed=ONCE)
    assert error <= ONCE, f"a product with {name} weights has an error of {error:.3g} u"


@pytest.mark.parametrize("returned", ["low", "float32"])
def test_scaled_products_are_those_of_their_values(amp: SuiteAmp, name: str, returned: str) -> None:
    """Multiply float8 activations by E4M3 weights, with a scale for each: rounded once, to the requested dtype."""
    form, device = FORMATS[name], amp.device.torch_device
    weight = _scaled(amp, FLOAT8_E4M3FN).to(FLOAT8_E4M3FN.dtype)
    x = torch.randn(32, COLUMNS, device=device).to(form.dtype)
    scales = torch.tensor(0.75, device=device), torch.tensor(2.0**-9, device=device)
    dtype = amp.dtype if returned == "low" else torch.float32
    try:
        result = scaled_product(x, weight.t(), scales, dtype)
    except NotImplementedError:
        assert holds_in(release_of(torch.__version__), since=None, until="2.8"), "this torch has float8 products"
        pytest.skip("this torch has no float8 products on this device")
    assert result.dtype is dtype
    exact = _values(x, form, amp) @ _values(weight, FLOAT8_E4M3FN, amp).t() * float(scales[0] * scales[1])
    error = relative_error(result, exact) / amp.precision.u
    amp.observe(f"float8_weights/scaled/{name}/{returned}", error, kind="ratio", unit="u", allowed=ONCE)
    assert error <= ONCE, f"a scaled product of {name} values has an error of {error:.3g} u"
