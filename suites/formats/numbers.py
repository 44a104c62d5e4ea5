"""Shared parts of the tests of formats: the formats of a target, and ways to convert to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.formats import FLOAT8_E4M3FN, FLOAT8_E5M2, FORMATS, Format, Overflow, converted
from pytest_amp.formats.format import Doubles
from pytest_amp.precision import Precision
from pytest_amp.run.targets import Target

#: The first release whose conversion to E4M3 saturates: of the floating dtypes that CUDA converts by an instruction
#: (pytorch/pytorch#177870), and of all dtypes on a CPU and on CUDA (pytorch/pytorch#178817).
INSTRUCTION_SATURATES_SINCE = (2, 12)
SATURATES_SINCE = {"cuda": (2, 13), "cpu": (2, 13)}
BY_INSTRUCTION = (torch.float32, torch.bfloat16, torch.float16)


def autocast_format(precision: Precision) -> Format:
    """Return the format of the autocast dtype."""
    return FORMATS[precision.name]


def low_formats(target: Target) -> Iterable[str]:
    """Return the target's own format, and those of eight bits, to which tensors of it are converted."""
    return (target.precision.name, FLOAT8_E4M3FN.name, FLOAT8_E5M2.name)


def overflow_of(form: Format, device_type: str, *, source: torch.dtype = torch.float32, way: str = "to") -> Overflow:
    """Return the overflow behaviour of this release's conversion of ``source`` to ``form`` by ``way`` (CONVERSIONS)."""
    converter = "cpu" if way == FROM_A_LIST else device_type
    if form is FLOAT8_E4M3FN and saturates(converter, source):
        return Overflow.SATURATE
    return Overflow.SPECIAL


def saturates(device_type: str, source: torch.dtype) -> bool:
    """Return whether conversions of ``source`` to E4M3 saturate; in earlier releases the same values become NaN."""
    since = SATURATES_SINCE.get(device_type)
    if device_type == "cuda" and source in BY_INSTRUCTION:
        since = INSTRUCTION_SATURATES_SINCE
    return since is not None and release_of(torch.__version__) >= since


def tensor_of(values: Doubles, amp: SuiteAmp, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor on the device; each of ``values`` must be representable in ``dtype``."""
    result = torch.from_numpy(values).to(dtype)
    back = result.double().numpy()
    assert np.array_equal(back, values, equal_nan=True), f"not all values are {dtype}"
    return result.to(amp.device.torch_device)


Conversion = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def _strided(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.stack([x, x], dim=1)
    return wide[:, 0].to(dtype)


def _copied(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)


def _one_by_one(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a few values as tensors of one element, which vectorized loops do not process."""
    return torch.stack([value.to(dtype).view(_INTEGERS[dtype.itemsize]) for value in x]).view(dtype)


def _in_shape(x: torch.Tensor, dtype: torch.dtype, *, columns: int, transposed: bool = False) -> torch.Tensor:
    """Convert a tensor of three dimensions, filled up with ones."""
    rows = -(-x.numel() // (2 * columns))
    filled = torch.cat([x, x.new_ones(2 * rows * columns - x.numel())])
    shaped = filled.view(2, columns, rows).mT if transposed else filled.view(2, rows, columns)
    result = shaped.to(dtype)
    return (result.mT if transposed else result).reshape(-1)[: x.numel()]


def _at_the_end(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert values after a quarter of a million others: a loop of several threads, or a grid of many blocks."""
    return torch.cat([x.new_ones(2**18), x]).to(dtype)[2**18 :]


def _from_numbers(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a few values from a list of Python numbers."""
    return torch.tensor(x.tolist(), dtype=dtype, device=x.device)


#: The conversion of Python's numbers, on the CPU for every device.
FROM_A_LIST = "from a list"
#: Conversions that are slow per value.
SLOW = ("one by one", FROM_A_LIST)

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

#: The methods that are named after a dtype.
_NAMED: dict[torch.dtype, Callable[[torch.Tensor], torch.Tensor]] = {
    torch.bfloat16: lambda x: x.bfloat16(),
    torch.float16: lambda x: x.half(),
}


def _by_name(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _NAMED[dtype](x) if dtype in _NAMED else x.to(dtype)


#: Conversions of a float32 tensor to another dtype, by different loops or kernels of torch.
CONVERSIONS: dict[str, Conversion] = {
    "to": lambda x, dtype: x.to(dtype),
    "copy_": _copied,
    "type": lambda x, dtype: x.type(dtype),
    "by its name": _by_name,
    "strided": _strided,
    "three dimensions": lambda x, dtype: _in_shape(x, dtype, columns=3),
    "transposed": lambda x, dtype: _in_shape(x, dtype, columns=5, transposed=True),
    "at the end": _at_the_end,
    "one by one": _one_by_one,
    FROM_A_LIST: _from_numbers,
}


def expect_rounded(  # noqa: PLR0913  # one comparison
    amp: SuiteAmp, form: Format, inputs: Doubles, actual: torch.Tensor, *, way: str, overflow: Overflow | None = None
) -> None:
    """Raise AmpFailure unless ``actual`` is ``inputs`` rounded to ``form`` once, to nearest with ties to even.

    ``overflow`` is the overflow behaviour of the conversion; None is that of float32 by ``Tensor.to``.
    """
    expected = form.round(inputs, overflow or overflow_of(form, amp.device.type))
    values = converted(actual, form)
    same = (values == expected) & (np.signbit(values) == np.signbit(expected)) | np.isnan(values) & np.isnan(expected)
    if same.all():
        return
    first = int(np.flatnonzero(~same)[0])
    raise AmpFailure(
        f"{int((~same).sum())} of {len(inputs)} values are not rounded to the nearest even {form.name} "
        f"by {way} on {amp.target.id}",
        label_before="rule",
        before=f"{inputs[first]!r} becomes {expected[first]!r}",
        now=f"{values[first]!r} on {amp.device.describe()}",
        likely=_likely(form, inputs[first], values[first], expected[first]),
    )


def _likely(form: Format, value: float, actual: float, expected: float) -> str:
    if abs(value) > form.max:
        return "a conversion that saturates, or no longer does: overflow does not become infinity"
    if abs(actual) < abs(expected):
        return "the conversion truncates, or flushes subnormal numbers to zero"
    return "the conversion does not round ties to even, or rounds twice"


def spread(values: Doubles, count: int) -> Doubles:
    """Return an evenly spread sample, with the first and the last value."""
    if len(values) <= count:
        return values
    chosen: Doubles = values[np.linspace(0, len(values) - 1, count).astype(np.int64)]
    return chosen
