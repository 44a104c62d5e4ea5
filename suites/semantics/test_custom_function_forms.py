"""``custom_fwd`` and ``custom_bwd`` in every form: deprecated aliases, bare and with arguments, nested, raising."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp

from .state import OTHER, State, expect_state

Wrap = Callable[..., Any]


def _current(device_type: str, cast_inputs: torch.dtype | None) -> tuple[Wrap, Wrap]:
    forward = torch.amp.custom_fwd(device_type=device_type, cast_inputs=cast_inputs)
    return forward, torch.amp.custom_bwd(device_type=device_type)


def _function_first(device_type: str, cast_inputs: torch.dtype | None) -> tuple[Wrap, Wrap]:
    """Pass the function as the first argument instead of using a decorator."""
    return (
        lambda f: torch.amp.custom_fwd(f, device_type=device_type, cast_inputs=cast_inputs),
        lambda f: torch.amp.custom_bwd(f, device_type=device_type),
    )


def _deprecated(_: str, cast_inputs: torch.dtype | None) -> tuple[Wrap, Wrap]:
    """Return the aliases, deprecated since torch 2.4, which apply to CUDA on every machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        bare = torch.cuda.amp.custom_fwd
        return (bare if cast_inputs is None else bare(cast_inputs=cast_inputs)), torch.cuda.amp.custom_bwd


FORMS = {"decorator": _current, "function first": _function_first, "torch.cuda.amp": _deprecated}


@contextmanager
def _switched_on(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Enable autocast by its setters: without CUDA, a CUDA region disables itself, and the setters work."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)  # noqa: FBT003  # torch's own signature
    torch.set_autocast_dtype(device_type, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


def _function(
    form: str, device_type: str, cast_inputs: torch.dtype | None, observed: dict[str, Any]
) -> type[torch.autograd.Function]:
    """Return an identity function that records the state in forward and backward, and raises on request."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        wrap_forward, wrap_backward = FORMS[form](device_type, cast_inputs)

        class Looks(torch.autograd.Function):
            @staticmethod
            @wrap_forward
            def forward(_: Any, tensor: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
                """Forward."""
                observed["forward"], observed["dtype"] = torch.is_autocast_enabled(device_type), tensor.dtype
                return tensor * scale

            @staticmethod
            @wrap_backward
            def backward(_: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
                """Backward."""
                observed["backward"] = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
                if observed.get("raises"):
                    raise ArithmeticError
                return gradient, None

    return Looks


def _device_of(form: str, amp: SuiteAmp) -> str:
    return "cuda" if form == "torch.cuda.amp" else amp.device.type


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cast_inputs", [None, torch.float32], ids=["as is", "float32"])
def test_every_form_keeps_the_state_of_forward(amp: SuiteAmp, form: str, cast_inputs: torch.dtype | None) -> None:
    """Autocast is on in forward, or off with ``cast_inputs``; backward runs in the state and dtype of forward.

    Without CUDA the region of its backward disables itself, but still sets the dtype.
    """
    device_type = _device_of(form, amp)
    observed: dict[str, Any] = {}
    function = _function(form, device_type, cast_inputs, observed)
    tensor = torch.ones(4, device=amp.device.torch_device, requires_grad=True)
    with _switched_on(device_type, amp.dtype):
        result = function.apply(tensor)
    before = State.now(device_type)
    with _switched_on(device_type, OTHER[amp.dtype]):
        result.sum().backward()
    on = cast_inputs is None
    back = on and (device_type != "cuda" or torch.cuda.is_available())
    assert observed["forward"] is on, f"in the body of {form} autocast is {'on' if observed['forward'] else 'off'}"
    expect_state(
        amp, f"in backward of {form}", observed["backward"], (back, amp.dtype), likely="forward's note is ignored"
    )
    expect_state(amp, "after backward", State.now(device_type), before, likely="custom_bwd leaves its region on")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_nothing_outside(amp: SuiteAmp, form: str) -> None:
    device_type = _device_of(form, amp)
    observed: dict[str, Any] = {}
    tensor = torch.ones(4, device=amp.device.torch_device, dtype=amp.dtype, requires_grad=True)
    _function(form, device_type, torch.float32, observed).apply(tensor).sum().backward()
    assert (observed["forward"], observed["dtype"]) == (False, amp.dtype)
    assert observed["backward"][0] is False


@pytest.mark.parametrize("form", FORMS)
def test_a_wrapped_function_keeps_its_name(amp: SuiteAmp, form: str) -> None:
    function: Any = _function(form, _device_of(form, amp), None, {})
    actual = [(method.__name__, method.__doc__) for method in (function.forward, function.backward)]
    assert actual == [("forward", "Forward."), ("backward", "Backward.")]


@pytest.mark.parametrize("form", ["decorator", "function first"])
def test_keywords_of_forward_are_cast_too(amp: SuiteAmp, form: str) -> None:
    forward, _ = FORMS[form](amp.device.type, torch.float32)
    low = torch.ones(2, device=amp.device.torch_device, dtype=amp.dtype)

    class Context:
        pass

    with amp.autocast():
        arguments = forward(lambda _, *args, **keywords: (args, keywords))(Context(), low, key=low, rows=[low])
    (positional,), keywords = arguments
    dtypes = [positional.dtype, keywords["key"].dtype, keywords["rows"][0].dtype]
    assert dtypes == [torch.float32] * 3


@pytest.mark.parametrize("cast_inputs", [None, torch.float32], ids=["as is", "float32"])
def test_a_backward_that_raises_leaves_the_state_as_it_was(amp: SuiteAmp, cast_inputs: torch.dtype | None) -> None:
    observed: dict[str, Any] = {"raises": True}
    with amp.autocast():
        result = _function("decorator", amp.device.type, cast_inputs, observed).apply(
            torch.ones(4, device=amp.device.torch_device, requires_grad=True)
        )
    for inside in (False, True):
        with amp.autocast(enabled=inside, dtype=OTHER[amp.dtype]):
            before = State.now(amp.device.type)
            with pytest.raises(ArithmeticError):
                result.sum().backward(retain_graph=True)
            after = State.now(amp.device.type)
        expect_state(amp, "after a custom_bwd that raised", after, before, likely="its region is not left")


def test_a_function_inside_a_function(amp: SuiteAmp) -> None:
    """An inner function without ``cast_inputs`` runs in the disabled region of the outer function's ``cast_inputs``."""
    outer_seen: dict[str, Any] = {}
    inner_seen: dict[str, Any] = {}
    inner = _function("decorator", amp.device.type, None, inner_seen)

    class Outer(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.device.type, cast_inputs=torch.float32)
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004  # autograd passes it
            outer_seen["forward"] = torch.is_autocast_enabled(amp.device.type), tensor.dtype
            with torch.enable_grad():
                return inner.apply(tensor)  # type: ignore[no-any-return]

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.device.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004  # autograd passes it
            return gradient

    with amp.autocast():
        Outer.apply(torch.ones(4, device=amp.device.torch_device, dtype=amp.dtype, requires_grad=True))
        assert torch.is_autocast_enabled(amp.device.type)
    assert outer_seen["forward"] == (False, torch.float32)
    assert (inner_seen["forward"], inner_seen["dtype"]) == (False, torch.float32)


def test_one_function_many_regions(amp: SuiteAmp) -> None:
    """Each call records its own state: backward runs in the region of its own forward, in any order of calls."""
    observed: dict[str, Any] = {}
    function = _function("decorator", amp.device.type, None, observed)
    results = []
    regions: list[tuple[bool, torch.dtype]] = [(True, amp.dtype), (True, OTHER[amp.dtype]), (False, amp.dtype)]
    for enabled, dtype in regions:
        with amp.autocast(enabled=enabled, dtype=dtype):
            tensor = torch.ones(4, device=amp.device.torch_device, requires_grad=True)
            results.append(function.apply(tensor).sum())
    actual = []
    for result in reversed(results):
        result.backward()
        actual.append(observed["backward"])
    assert actual[::-1] == regions


def test_double_backward_through_a_custom_function(amp: SuiteAmp) -> None:
    """Compute a second derivative through a differentiable backward."""

    class Cube(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.device.type, cast_inputs=torch.float32)
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(tensor)
            return tensor**3

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.device.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (tensor,) = ctx.saved_tensors
            product: torch.Tensor = 3 * tensor**2 * gradient
            return product

    tensor = torch.full((4,), 2.0, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast():
        result = Cube.apply(tensor)
    (first,) = torch.autograd.grad(result.sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), tensor)
    assert (first.dtype, second.dtype) == (torch.float32, torch.float32)
    assert (first.tolist(), second.tolist()) == ([12.0] * 4, [12.0] * 4)


def test_a_device_that_is_no_name_is_refused(amp: SuiteAmp) -> None:
    for wrap in (torch.amp.custom_fwd, torch.amp.custom_bwd):
        with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
            wrap(lambda: None, device_type=amp.device.torch_device)  # type: ignore[arg-type]
