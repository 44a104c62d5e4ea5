"""Products have the region's dtype inside it, and are float32 in a disabled region and outside."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from .state import OTHER, expect_dtype, product_dtype

#: Regions from the outermost to the innermost: on, off, or on in the other autocast dtype.
NESTINGS = (
    "on",
    "off",
    "on.off",
    "off.on",
    "on.on",
    "on.other",
    "other.on",
    "off.off",
    "on.off.on",
    "off.on.off",
    "on.other.off",
    "other.off.on",
)


def _walk(amp: SuiteAmp, switches: Sequence[str]) -> list[torch.dtype]:
    """Return the dtypes of a product at each region's entry, and again at its exit."""
    here = product_dtype(amp.device.torch_device)
    if not switches:
        return [here]
    dtype = OTHER[amp.dtype] if switches[0] == "other" else amp.dtype
    with amp.autocast(dtype=dtype, enabled=switches[0] != "off"):
        inside = _walk(amp, switches[1:])
    return [here, *inside, product_dtype(amp.device.torch_device)]


@pytest.mark.amp(fake=True)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_the_innermost_region_decides(amp: SuiteAmp, nesting: str) -> None:
    switches = nesting.split(".")
    means = {"on": amp.dtype, "off": torch.float32, "other": OTHER[amp.dtype]}
    way_in = [torch.float32, *(means[switch] for switch in switches)]
    expected = [*way_in, *reversed(way_in[:-1])]
    with amp.device.tensors():
        actual = _walk(amp, switches)
    amp.observe(f"nesting {nesting}", [dtype_name(dtype) for dtype in actual], kind="dtype")
    if actual != expected:
        raise AmpFailure(
            f"in the regions {nesting} on {amp.target.id} a product does not follow the innermost one",
            label_before="rule",
            before=", ".join(map(dtype_name, expected)) + " (after each entry, then after each exit)",
            now=", ".join(map(dtype_name, actual)),
            likely="a region does not set on entry, or does not restore on exit, whether autocast is on and its dtype",
        )


@pytest.mark.amp(fake=True)
def test_a_disabled_region_keeps_low_arguments_low(amp: SuiteAmp) -> None:
    """A disabled region casts nothing, in neither direction: results of the outer region stay unchanged."""
    with amp.device.tensors(), amp.autocast():
        low = torch.ones(4, 4, device=amp.device.torch_device).to(amp.dtype)
        with amp.autocast(enabled=False):
            retained, disabled_product = torch.mm(low, low).dtype, torch.mm(low.float(), low.float()).dtype
    expect_dtype(amp, "disabled, low arguments", retained, amp.dtype, likely="a disabled region casts its arguments")
    expect_dtype(
        amp, "disabled, float() arguments", disabled_product, torch.float32, likely="a disabled region is not disabled"
    )


@pytest.mark.amp(fake=True)
def test_mixed_arguments_are_cast_to_the_region(amp: SuiteAmp) -> None:
    with amp.device.tensors(), amp.autocast():
        float32 = torch.ones(4, 4, device=amp.device.torch_device)
        actual = torch.mm(float32, float32.to(amp.dtype)).dtype
    expect_dtype(amp, "mixed arguments", actual, amp.dtype, likely="arguments are not cast one by one")


@pytest.mark.parametrize("form", ["out", "in place"])
def test_a_result_that_has_a_place_keeps_its_dtype(amp: SuiteAmp, form: str) -> None:
    """``out=`` and in-place variants are not autocast (torch's autocast op reference)."""
    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    exact = torch.mm(matrix, matrix)
    with amp.autocast():
        place = torch.zeros_like(matrix)
        result = torch.mm(matrix, matrix, out=place) if form == "out" else place.addmm_(matrix, matrix)
    expect_dtype(amp, f"{form} product", result.dtype, torch.float32, likely=f"{form} variants are autocast now")
    assert result is place
    # float32 sums may have a different order (1e-7); a rounding to a 16-bit format is at least 1e-4.
    assert torch.allclose(result, exact, rtol=0, atol=1e-5), f"the {form} product was rounded to a low dtype"


def test_products_equal_hand_cast_ones(amp: SuiteAmp) -> None:
    """Nothing but the casts differs: products have the bits of manual casts, and of float32 when off."""
    left, right = (torch.randn(16, 16, device=amp.device.torch_device) for _ in range(2))
    exact, rounded = torch.mm(left, right), torch.mm(left.to(amp.dtype), right.to(amp.dtype))
    with amp.autocast():
        low = torch.mm(left, right)
        with amp.autocast(enabled=False):
            float32 = torch.mm(left, right)
    assert low.dtype is amp.dtype
    assert torch.equal(low, rounded), "a product in a region differs from the product of hand-cast arguments"
    assert torch.equal(float32, exact), "a product in a disabled region differs from the product outside"


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=dtype_name)
def test_other_dtypes_pass_through(amp: SuiteAmp, dtype: torch.dtype) -> None:
    """Only float32 and the autocast dtypes are cast, never float64 or complex values."""
    if amp.device.type == "mps" and dtype is torch.float64:
        pytest.skip("MPS has no float64")
    values = torch.randn(4, 4).to(dtype).to(amp.device.torch_device)
    outside = torch.mm(values, values)
    with amp.autocast():
        inside = torch.mm(values, values)
    assert inside.dtype is dtype, f"a product of {dtype_name(dtype)} became {dtype_name(inside.dtype)} in a region"
    assert torch.equal(inside, outside)


def test_an_integer_model_computes_the_same(amp: SuiteAmp) -> None:
    """Indexing, counting and sorting have nothing to cast."""
    device = amp.device.torch_device
    table, expected = torch.arange(40, device=device).reshape(10, 4), torch.tensor([7, 7, 0, 3], device=device)

    def model() -> tuple[torch.Tensor, ...]:
        rows = torch.nn.functional.embedding(expected, table)
        return rows, rows.sum(0), rows.sort(0, descending=True).values, rows.argmax(1), torch.bincount(expected)

    outside = model()
    with amp.autocast():
        inside = model()
    for left, right in zip(inside, outside, strict=True):
        assert left.dtype is right.dtype
        assert torch.equal(left, right)


def test_random_numbers_are_the_same(amp: SuiteAmp) -> None:
    """A region draws the same random values as float32 does; entering it draws none."""
    device = amp.device.torch_device

    def draw() -> list[torch.Tensor]:
        mask = torch.nn.functional.dropout(torch.ones(256, device=device), 0.5)
        return [
            mask,
            torch.randn(8, device=device),
            torch.rand(8, device=device),
            torch.randperm(8, device=device),
            torch.rand(8),
        ]

    torch.manual_seed(amp.config.seed)
    outside = draw()
    torch.manual_seed(amp.config.seed)
    with amp.autocast():
        inside = draw()
    for what, left, right in zip(
        ("dropout", "randn", "rand", "randperm", "the CPU's rand"), inside, outside, strict=True
    ):
        assert left.dtype is right.dtype, f"{what} became {left.dtype} in a region"
        assert torch.equal(left, right), f"{what} draws different values in a region"


def test_a_dropout_mask_is_that_of_the_dtype_it_meets(amp: SuiteAmp) -> None:
    """Dropout drops the same elements of an autocast product as of a product of manual casts."""
    matrix = torch.randn(16, 16, device=amp.device.torch_device)
    low = matrix.to(amp.dtype)
    torch.manual_seed(amp.config.seed)
    manual = torch.nn.functional.dropout(torch.mm(low, low), 0.5)
    torch.manual_seed(amp.config.seed)
    with amp.autocast():
        autocast = torch.nn.functional.dropout(torch.mm(matrix, matrix), 0.5)
    assert torch.equal(autocast, manual)


def test_inference_mode_computes_what_no_grad_computes(amp: SuiteAmp) -> None:
    layer = torch.nn.Linear(8, 8).to(amp.device.torch_device)
    batch = torch.randn(4, 8, device=amp.device.torch_device)
    with torch.no_grad(), amp.autocast():
        expected = layer(batch)
    with torch.inference_mode(), amp.autocast():
        actual = layer(batch)
        assert actual.is_inference()
        assert actual.dtype is amp.dtype, f"in inference mode a linear layer computes in {dtype_name(actual.dtype)}"
        assert torch.equal(actual, expected)
    with amp.autocast(), torch.inference_mode():
        assert torch.equal(layer(batch), expected), "inference mode inside a region differs from a region inside it"
