"""``torch.amp.custom_fwd`` and ``custom_bwd``: the state and the arguments of a custom autograd function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .state import OTHER, State, expect_dtype, expect_state


def _square(
    amp: SuiteAmp, observed: dict[str, Any], cast_inputs: torch.dtype | None = None
) -> type[torch.autograd.Function]:
    """Return a function that squares a matrix; forward and backward record their arguments and state."""
    device_type = amp.device.type

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=cast_inputs)
        def forward(ctx: Any, matrix: torch.Tensor, *extra: Any) -> torch.Tensor:
            observed["forward"] = torch.is_autocast_enabled(device_type), matrix.dtype
            observed["others"] = extra
            ctx.save_for_backward(matrix)
            ctx.count = len(extra)
            return torch.mm(matrix, matrix)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (matrix,) = ctx.saved_tensors
            product = torch.mm(gradient.float(), matrix.float().t())
            observed["backward"] = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
            observed["gradient"], observed["product"] = gradient.dtype, product.dtype
            return product + torch.mm(matrix.float().t(), gradient.float()), *[None] * ctx.count

    return Square


def _matrix(amp: SuiteAmp) -> torch.Tensor:
    return torch.randn(4, 4, device=amp.device.torch_device, requires_grad=True)


def test_forward_runs_in_the_region(amp: SuiteAmp) -> None:
    """Without ``cast_inputs`` arguments and state are unchanged."""
    observed: dict[str, Any] = {}
    with amp.autocast():
        result = _square(amp, observed).apply(_matrix(amp))
    assert observed["forward"] == (True, torch.float32)
    expect_dtype(amp, "custom_fwd, result", result.dtype, amp.dtype, likely="custom_fwd leaves the region")


def test_backward_runs_in_the_region_of_forward(amp: SuiteAmp) -> None:
    """Backward is enabled in forward's dtype, though it is called outside, or in a region of the other dtype."""
    for where in ("outside", "in another region"):
        observed: dict[str, Any] = {}
        with amp.autocast():
            loss = _square(amp, observed).apply(_matrix(amp)).float().sum()
        with amp.autocast(dtype=OTHER[amp.dtype], enabled=where != "outside"):
            loss.backward()
        actual = (*observed["backward"], observed["gradient"], observed["product"])
        amp.observe(f"custom_bwd {where}", [str(value) for value in actual], kind="state")
        likely = "custom_bwd does not restore the region that custom_fwd noted"
        expected = (True, amp.dtype, amp.dtype, amp.dtype)
        expect_state(amp, f"in custom_bwd, backward called {where}", actual, expected, likely=likely)


def test_backward_of_a_forward_outside_is_outside(amp: SuiteAmp) -> None:
    """Backward also runs outside of a region if it is called inside one."""
    observed: dict[str, Any] = {}
    loss = _square(amp, observed).apply(_matrix(amp)).sum()
    with amp.autocast():
        loss.backward()
    assert observed["forward"] == (False, torch.float32)
    actual = observed["backward"][0], observed["product"]
    likely = "custom_bwd follows the region in which backward is called"
    expect_state(amp, "in custom_bwd after a forward outside", actual, (False, torch.float32), likely=likely)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=dtype_name)
def test_inputs_are_cast_and_autocast_is_off(amp: SuiteAmp, dtype: torch.dtype) -> None:
    """``cast_inputs`` casts floating-point arguments, and runs the body and backward with autocast off."""
    observed: dict[str, Any] = {}
    matrix = _matrix(amp)
    with amp.autocast():
        result = _square(amp, observed, dtype).apply(matrix)
    result.float().sum().backward()
    amp.observe(f"cast_inputs={dtype_name(dtype)}", [str(value) for value in observed["forward"]], kind="state")
    likely = "custom_fwd does not cast its inputs, or leaves autocast on in its body"
    expect_state(
        amp, f"in custom_fwd(cast_inputs={dtype_name(dtype)})", observed["forward"], (False, dtype), likely=likely
    )
    assert result.dtype is dtype
    assert observed["backward"][0] is False
    assert observed["gradient"] is dtype
    assert matrix.grad is not None
    assert matrix.grad.dtype is torch.float32


def test_what_is_no_low_number_is_not_cast(amp: SuiteAmp) -> None:
    """float64, integers, strings and None pass unchanged; containers are cast within (``autocast_mode._cast``)."""
    device = amp.device.torch_device
    observed: dict[str, Any] = {}
    integers, low = torch.arange(3, device=device), torch.ones(2, device=device, dtype=amp.dtype)
    uncast = (integers, "text", None, [low, (low,)], {"key": low})
    with amp.autocast():
        _square(amp, observed, torch.float32).apply(_matrix(amp), *uncast)
    number, text, nothing, sequence, mapping = observed["others"]
    assert number is integers
    assert (text, nothing) == ("text", None)
    assert [sequence[0].dtype, sequence[1][0].dtype, mapping["key"].dtype] == [torch.float32] * 3
    assert isinstance(sequence, list)
    assert isinstance(sequence[1], tuple)
    if amp.device.type != "mps":  # which has no float64
        double = torch.ones(2, device=device, dtype=torch.float64)
        with amp.autocast():
            _square(amp, observed, torch.float32).apply(_matrix(amp), double)
        assert observed["others"][0] is double


def test_cast_inputs_does_nothing_outside_a_region(amp: SuiteAmp) -> None:
    """It does nothing in a disabled region, either (docstring of ``custom_fwd``)."""
    for disabled in (False, True):
        observed: dict[str, Any] = {}
        low = torch.ones(4, 4, device=amp.device.torch_device, dtype=amp.dtype, requires_grad=True)
        if disabled:
            with amp.autocast(), amp.autocast(enabled=False):
                result = _square(amp, observed, torch.float32).apply(low)
        else:
            result = _square(amp, observed, torch.float32).apply(low)
        assert observed["forward"] == (False, amp.dtype)
        assert result.dtype is amp.dtype


def test_gradients_are_those_of_the_plain_operator(amp: SuiteAmp) -> None:
    """A custom function with float32 ``cast_inputs`` is equivalent to a disabled region."""
    matrix = _matrix(amp)
    with amp.autocast():
        custom = _square(amp, {}, torch.float32).apply(matrix)
    with amp.autocast(), amp.autocast(enabled=False):
        disabled_product = torch.mm(matrix, matrix)
    assert torch.equal(custom, disabled_product)
    weights = torch.randn_like(matrix)
    (actual,) = torch.autograd.grad((custom * weights).sum(), matrix)
    (expected,) = torch.autograd.grad((disabled_product * weights).sum(), matrix)
    assert torch.allclose(actual, expected, rtol=0, atol=8 * 2.0**-24 * float(expected.abs().max()))


@pytest.mark.parametrize("cast_inputs", [None, torch.float32], ids=["as is", "float32"])
def test_a_separate_setup_context_works(amp: SuiteAmp, cast_inputs: torch.dtype | None) -> None:
    device_type = amp.device.type

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=cast_inputs)
        def forward(matrix: torch.Tensor) -> torch.Tensor:
            return matrix * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            pass

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004  # autograd calls it so
            return gradient * 2

    matrix = _matrix(amp)
    with amp.autocast():
        loss = Double.apply(matrix).float().sum()
    loss.backward()
    assert matrix.grad is not None
    assert bool((matrix.grad == 2).all())


@pytest.mark.parametrize("cast_inputs", [None, torch.float32], ids=["as it is", "cast"])
def test_a_forward_that_raises_leaves_the_region_as_it_was(amp: SuiteAmp, cast_inputs: torch.dtype | None) -> None:
    class Raising(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.device.type, cast_inputs=cast_inputs)
        def forward(_: Any, matrix: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError(str(matrix.dtype))

    with amp.autocast():
        before = State.now(amp.device.type)
        with pytest.raises(ArithmeticError, match=dtype_name(cast_inputs or torch.float32)):
            Raising.apply(_matrix(amp))
        after = State.now(amp.device.type)
    expect_state(amp, "after a forward that raised", after, before, likely="custom_fwd does not restore the region")
