"""Conversion of one operator call to float64: which arguments are rounded first, and which stay unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_amp import torch_private
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.numerics.draws import draws
from pytest_amp.numerics.oracle.conversion import operation_of
from pytest_amp.numerics.oracle.observer import Observer
from pytest_amp.numerics.oracle.operation import WIDE, widened
from pytest_amp.numerics.oracle.verdict import faults

pytestmark = pytest.mark.usefixtures("one_thread")

LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
#: Numbers that the low dtype does not represent, and 8, which it does.
NUMBERS = {torch.bfloat16: (257, 1023, 257.0, 8), torch.float16: (2049, 4099, 2049.0, 8)}


def _weight(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of the weight of ``lerp``: float32, but before torch 2.9 only the dtype of ``x`` is accepted."""
    return torch.float32 if holds_in(release_of(torch.__version__), since="2.9", until=None) else x.dtype


#: Functions of a low-precision tensor and a number, which they pass to torch as a Python number or in a tensor.
OPERATIONS_WITH_A_NUMBER: dict[str, Callable[[torch.Tensor, float], object]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "subtract from": torch.rsub,
    "multiply": torch.mul,
    "divide": torch.div,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "compare": lambda x, number: torch.where(x > number, x, -x),
    "add a multiple": lambda x, number: torch.add(x, x, alpha=number),
    "add a tensor": lambda x, number: x + torch.tensor(number),
    "multiply by a tensor": lambda x, number: x * torch.tensor(number),
    "multiply a tensor": lambda x, number: torch.tensor(number) * x,
    "divide by a tensor": lambda x, number: x / torch.tensor(number),
    "divide a tensor": lambda x, number: torch.tensor(number) / x,
    "floor of a tensor": lambda x, number: torch.tensor(number) // x,
    "add products with a tensor": lambda x, number: torch.addcmul(x, torch.tensor(float(number)), x),
    "add products to a tensor": lambda x, number: torch.addcmul(torch.tensor(float(number)), x, x / 600),
    "add quotients by a tensor": lambda x, number: torch.addcdiv(x, x, torch.tensor(number / 1000)),
    "add a multiple of products": lambda x, number: torch.addcmul(x, x, x / 600, value=number),
    "length with a tensor": lambda x, number: torch.hypot(x, torch.tensor(float(number))),
    "log of sums with a tensor": lambda x, number: torch.logaddexp(torch.tensor(number / 100), x / 600),
    "add a row": lambda x, number: x + torch.full((256,), number),
    "subtract from a row": lambda x, number: torch.full((256,), number) - x,
    "multiply by a row": lambda x, number: x * torch.full((256,), number),
    "divide by a row": lambda x, number: x / torch.full((256,), number),
    "remainder of a row": lambda x, number: torch.remainder(x, torch.full((256,), number)),
    "angle to a row": lambda x, number: torch.atan2(x, torch.full((256,), number)),
    "add products with a row": lambda x, number: torch.addcmul(x, x / 600, torch.full((256,), number)),
    "add a row in place": lambda x, number: x.clone().add_(torch.full((256,), number)),
    "remainder in place": lambda x, number: x.clone().remainder_(number),
    "fmod in place": lambda x, number: x.clone().fmod_(number),
    "remainder of the number": lambda x, number: torch.remainder(number, x),
    "cut off": lambda x, number: torch.div(x, number, rounding_mode="trunc"),
    "cut off a quotient of rows": lambda x, number: torch.div(x, x.flip(0) / number, rounding_mode="trunc"),
    "cut off in place": lambda x, number: x.clone().div_(x.flip(0) / number, rounding_mode="trunc"),
    "floor": lambda x, number: torch.div(x, number, rounding_mode="floor"),
    "floor of a quotient of rows": lambda x, number: x // (x.flip(0) / number),
    "floor of the number": lambda x, number: number // x,
    "xlogy": torch.xlogy,
    "xlogy in place": lambda x, number: x.clone().xlogy_(number),
    "xlogy of the number": lambda x, number: torch.xlogy(number, x.abs()),
    "xlogy of a row": lambda x, number: torch.xlogy(x, torch.full((256,), number)),
    "xlog1py": torch.special.xlog1py,
    "xlog1py of the number": lambda x, number: torch.special.xlog1py(number, x.abs()),
    "a power of the number": lambda x, number: torch.pow(number, x / 600),
    "to the power of a tensor": lambda x, number: torch.pow((x / 600).abs(), torch.tensor(number / 100)),
    "angle to a tensor": lambda x, number: torch.atan2(x, torch.tensor(number)),
    "between by a tensor": lambda x, number: torch.lerp(x, x.flip(0), torch.tensor(number / 1000, dtype=_weight(x))),
    "add a multiple at indices": lambda x, number: x.index_add(0, torch.arange(256), x.flip(0), alpha=number),
    "logit": lambda x, number: torch.logit((x / 2000).abs(), number / 10000),
    "lists: add": lambda x, number: torch._foreach_add([x], number)[0],
    "lists: add each": lambda x, number: torch._foreach_add([x], [number])[0],
    "lists: add multiples": lambda x, number: torch._foreach_add([x], [x.flip(0)], alpha=number)[0],
    "lists: subtract": lambda x, number: torch._foreach_sub([x], number)[0],
    "lists: multiply": lambda x, number: torch._foreach_mul([x], number)[0],
    "lists: multiply tensors": lambda x, number: torch._foreach_mul(
        [torch.tensor(number), x], [x, torch.tensor(number)]
    ),
    "lists: divide tensors": lambda x, number: torch._foreach_div([torch.tensor(number), x], [x, torch.tensor(number)]),
    "lists: add products": lambda x, number: torch._foreach_addcmul([x], [torch.tensor(float(number))], [x])[0],
    "lists: power": lambda x, number: torch._foreach_pow([(x / 600).abs()], number / 100)[0],
}


@LOW
@pytest.mark.parametrize("name", OPERATIONS_WITH_A_NUMBER)
def test_number_with_a_low_precision_tensor_is_rounded_as_in_the_kernel(name: str, dtype: torch.dtype) -> None:
    """Numbers are rounded to the low dtype, integers too: ``x + 257`` adds 256 in bf16."""
    x = (torch.randn(256, generator=torch.Generator().manual_seed(0)) * 600).to(dtype)
    for number in NUMBERS[dtype]:
        observer = Observer("cpu", dtype)
        with observer.on({}):
            OPERATIONS_WITH_A_NUMBER[name](x, number)
        assert observer.observed_calls
        assert faults(observer.observed_calls, dtype) == [], number
        for call in observer.observed_calls:
            assert all(result.equal == result.elements for result in call.results), (number, call)


def _call(name: str, *args: object, **kwargs: object) -> torch_private.Dispatched:
    return torch_private.Dispatched(torch_private.find_overload(name), args, kwargs)


def test_number_with_tensors_of_two_dtypes_is_not_rounded() -> None:
    """The result is float32, so the kernel computes in float32."""
    low, wide = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    of_two_dtypes = operation_of(_call("aten::add.Tensor", low, wide, alpha=257), (), widened, device_type="cpu")
    assert of_two_dtypes.kwargs["alpha"] == 257
    of_one_dtype = operation_of(_call("aten::add.Tensor", low, low, alpha=257), (), widened, device_type="cpu")
    assert of_one_dtype.kwargs["alpha"] == 256
    exact = operation_of(_call("aten::add.Tensor", low, low, alpha=257), (), widened, device_type="cpu", rounds=False)
    assert exact.kwargs["alpha"] == 257


def test_indices_and_masks_are_unchanged() -> None:
    low, indices = torch.ones(300, 2, dtype=torch.bfloat16), torch.arange(300)
    for call, position in (
        (_call("aten::embedding", low, indices), 1),
        (_call("aten::index_select", low, 0, indices), 2),
        (_call("aten::mul.Tensor", low, torch.ones(300, 2, dtype=torch.bool)), 1),
    ):
        result = operation_of(call, (), widened, device_type="cpu")
        assert result.args[position] is call.args[position]


def test_conversion_to_float32_is_disabled_for_wide_tensors() -> None:
    """``half_to_float`` is for half-precision inputs: the float64 kernel of softmax rejects it."""
    x = torch.ones(2, 3, dtype=torch.float16)
    arguments = (x, -1, True)
    result = operation_of(_call("aten::_softmax", *arguments), (torch.float32,), widened, device_type="cpu")
    assert result.args[1:] == (-1, False)
    assert result.once()[0].dtype is WIDE[False]


def test_dtype_arguments_are_wide() -> None:
    call = _call("aten::sum.dim_IntList", torch.ones(2, dtype=torch.bfloat16), [0], dtype=torch.float32)
    result = operation_of(call, (torch.float32,), widened, device_type="cpu")
    assert (result.kwargs["dtype"], result.given) == (WIDE[False], (torch.bfloat16, None, None))


def test_calls_that_draw_random_numbers_are_recognized() -> None:
    x = torch.ones(1, 2, 4, 8)
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert not draws(_call(flash, x, x, x))
    assert not draws(_call(flash, x, x, x, 0.0))
    assert draws(_call(flash, x, x, x, 0.5))
    assert draws(_call(flash, x, x, x, dropout_p=0.5))
    assert draws(_call("aten::native_dropout", x, 0.0, None))
    assert not draws(_call("aten::add.Tensor", x, x))
