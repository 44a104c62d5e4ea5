"""Promotion of two dtypes: the dtypes that torch declares and those that operators return agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64

#: The promotion of each autocast dtype with another one (c10/core/ScalarType.cpp, promoteTypes): neither low dtype has
#: all values of the other, so that both together are float32; an integer changes nothing.
MET: dict[torch.dtype, dict[torch.dtype, torch.dtype]] = {
    BF16: {BF16: BF16, FP16: FP32, FP32: FP32, FP64: FP64, torch.complex64: torch.complex64},
    FP16: {BF16: FP32, FP16: FP16, FP32: FP32, FP64: FP64, torch.complex64: torch.complex64},
}
for _low, _others in MET.items():
    _others |= dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool), _low)

Asked = Callable[[torch.Tensor, torch.Tensor], torch.dtype]


def _joined(a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    return torch.cat([a, b]).dtype


#: Ways to query the promoted dtype of two tensors with several elements.
ASKED: dict[str, Asked] = {
    "promote_types": lambda a, b: torch.promote_types(a.dtype, b.dtype),
    "result_type": torch.result_type,
    "add": lambda a, b: (a + b).dtype,
    "mul": lambda a, b: torch.mul(a, b).dtype,
    "where": lambda a, b: torch.where(torch.ones_like(a, dtype=torch.bool), a, b).dtype,
    "cat": _joined,
    "stack": lambda a, b: torch.stack([a, b]).dtype,
}


def _expect(amp: SuiteAmp, what: str, actual: torch.dtype, expected: torch.dtype) -> None:
    if actual is not expected:
        raise AmpFailure(
            f"{what} is {dtype_name(actual)} on {amp.target.id}",
            label_before="rule",
            before=dtype_name(expected),
            now=f"{dtype_name(actual)} on torch {torch.__version__}",
            likely="dtypes are promoted another way: what was float32 may be low now, or the other way round",
        )


@pytest.mark.parametrize("other", MET[BF16], ids=dtype_name)
@pytest.mark.parametrize("way", ASKED)
def test_two_dtypes_make_the_one_that_holds_both(amp: SuiteAmp, way: str, other: torch.dtype) -> None:
    """Query the promoted dtype of dtypes, of tensors, and of operators' results, in either order."""
    device = amp.device.torch_device
    low, other_operand = torch.ones(3, dtype=amp.dtype, device=device), torch.ones(3, dtype=other, device=device)
    for a, b in ((low, other_operand), (other_operand, low)):
        what = f"{way} of {dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
        _expect(amp, what, ASKED[way](a, b), MET[amp.dtype][other])


#: torch 2.14 adds a complex dtype of two bfloat16.
OF_COMPLEX: dict[torch.dtype, Any] = {
    FP16: torch.complex32,
    BF16: getattr(torch, "bcomplex32", None) if release_of(torch.__version__) >= (2, 14) else torch.complex64,
}

#: A zero-dimensional tensor or Python number does not widen a low-precision tensor, unless its category differs.
SCALARS: dict[str, tuple[Any, bool]] = {
    "a float": (1.5, False),
    "an int": (2, False),
    "a complex": (1j, True),
    "a float32 scalar": (torch.tensor(1.5), False),
    "a float64 scalar": (torch.tensor(1.5, dtype=FP64), False),
}


@pytest.mark.parametrize("scalar", SCALARS)
def test_a_scalar_leaves_a_low_tensor_low(amp: SuiteAmp, scalar: str) -> None:
    """Declared and actual dtype agree; a complex scalar makes the result complex, of the same width if one exists."""
    value, is_complex = SCALARS[scalar]
    low = torch.ones(3, dtype=amp.dtype, device=amp.device.torch_device)
    expected = OF_COMPLEX[amp.dtype] if is_complex else amp.dtype
    for way, actual in {
        "result_type": torch.result_type(low, value),
        "result_type, the other way round": torch.result_type(value, low),
    }.items():
        _expect(amp, f"{way} of a low tensor and {scalar}", actual, expected)
    if not is_complex:
        _expect(amp, f"the product of a low tensor and {scalar}", (low * value).dtype, expected)
        _expect(amp, f"the difference of {scalar} and a low tensor", (value - low).dtype, expected)


@pytest.mark.parametrize("other", MET[BF16], ids=dtype_name)
def test_what_can_be_cast_is_what_results_may_be_written_to(amp: SuiteAmp, other: torch.dtype) -> None:
    """``can_cast`` considers the category of the dtypes only; ``out=`` and ``add_`` follow it."""
    low = torch.ones(3, dtype=amp.dtype, device=amp.device.torch_device)
    target = torch.ones(3, dtype=other, device=amp.device.torch_device)
    allowed = other.is_floating_point or other.is_complex
    assert torch.can_cast(amp.dtype, other) is allowed
    if allowed:
        target.add_(low)
        assert target.dtype is other
        torch.add(low, low, out=torch.empty_like(target))
    else:
        with pytest.raises(RuntimeError, match="can't be cast"):
            target.add_(low)


def test_products_of_two_dtypes_are_refused_and_not_promoted(amp: SuiteAmp) -> None:
    """Only autocast unifies mixed dtypes, and computes a product in its own."""
    device = amp.device.torch_device
    low = torch.ones(4, 4, dtype=amp.dtype, device=device)
    for other in {BF16, FP16, FP32} - {amp.dtype}:
        other_operand = torch.ones(4, 4, dtype=other, device=device)
        for a, b in ((low, other_operand), (other_operand, low)):
            with pytest.raises(RuntimeError, match="same"):
                a @ b
            with amp.autocast():
                assert (a @ b).dtype is amp.dtype
