"""``scale``: multiplies tensors and nested sequences of them, and creates the scaler's tensors on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_amp.amp import SuiteAmp

from .training import ScalerFactory, expected_gradient, training


def test_the_initial_scale_is_65536(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """All documented defaults hold."""
    scaler = torch.amp.GradScaler(amp.device.type)
    actual = scaler.state_dict()
    amp.observe("defaults", [f"{key} {value}" for key, value in actual.items()], kind="state")
    defaults = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    assert actual == {**defaults, "_growth_tracker": 0}
    assert scaler.is_enabled()
    assert amp_scaler(init_scale=8.0).get_scale() == 8.0


def test_queries_need_no_tensors(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Queries before the first ``scale`` return the requested values; ``scale`` creates the tensors on the device."""
    scaler = amp_scaler(init_scale=4.0, growth_interval=3)
    before = scaler.state_dict()
    scaled = scaler.scale(torch.ones((), device=amp.device.torch_device))
    assert scaled.item() == 4.0
    assert scaled.device.type == amp.device.type
    assert scaler.state_dict() == before


def test_a_tensor_is_multiplied(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    values = torch.tensor([1.0, -2.0, 0.25], device=amp.device.torch_device)
    scaled = amp_scaler(init_scale=8.0).scale(values)
    assert scaled.tolist() == [8.0, -16.0, 2.0]
    assert values.tolist() == [1.0, -2.0, 0.25], "scale works in place"


def test_a_scalar_loss_becomes_float32(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """A zero-dimensional low-precision loss times the float32 scale is float32, so that it does not overflow."""
    loss = torch.tensor(60000.0, device=amp.device.torch_device).to(amp.dtype)
    scaled = amp_scaler().scale(loss)
    assert scaled.dtype is torch.float32
    assert scaled.item() == loss.float().item() * 65536


def test_a_low_vector_stays_low(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    values = torch.ones(3, device=amp.device.torch_device, dtype=amp.dtype)
    assert amp_scaler(init_scale=8.0).scale(values).dtype is amp.dtype


def test_containers_keep_their_shape(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Lists and tuples, nested, keep their shape, and each tensor is multiplied."""
    one = torch.ones(2, device=amp.device.torch_device)
    scaled = amp_scaler(init_scale=8.0).scale([one, (one, [one * 2])])  # type: ignore[list-item]
    assert isinstance(scaled, list)
    first, (second, (third,)) = scaled
    assert isinstance(scaled[1], tuple)
    assert isinstance(scaled[1][1], list)
    assert isinstance(amp_scaler(init_scale=8.0).scale((one, one)), tuple)
    assert [tensor.tolist() for tensor in (first, second, third)] == [[8.0] * 2, [8.0] * 2, [16.0] * 2]


def test_a_generator_is_scaled_lazily(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    produced = []

    def losses() -> Iterator[torch.Tensor]:
        for value in (1.0, 2.0):
            produced.append(value)
            yield torch.full((2,), value, device=amp.device.torch_device)

    scaled = amp_scaler(init_scale=8.0).scale(losses())
    assert produced == []
    assert [tensor.tolist() for tensor in scaled] == [[8.0] * 2, [16.0] * 2]


@pytest.mark.parametrize("value", [3, 2.5, None], ids=["int", "float", "None"])
def test_what_is_no_tensor_is_refused(amp_scaler: ScalerFactory, value: object) -> None:
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        amp_scaler().scale(value)  # type: ignore[call-overload]


def test_gradients_are_multiplied_exactly(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Scale by a power of two: the scaled gradient has the bits of the unscaled one, shifted."""
    run = training(amp, amp_scaler(init_scale=1024.0))
    run.backward()
    assert torch.equal(run.gradient, expected_gradient(run.parameter) * 1024)


def test_small_gradients_survive(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Small gradients are the purpose of scaling: 2**-26 is 0 in fp16, and exact with a scale of 2**16."""
    device = amp.device.torch_device
    survived = {}
    for factor in (1.0, 65536.0):
        parameter = torch.nn.Parameter(torch.ones(4, 4, device=device))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        scaler = amp_scaler(init_scale=factor)
        with amp.autocast():
            result = torch.mm(torch.eye(4, device=device), parameter)
        scaler.scale((result.float() * 2.0**-26).sum()).backward()
        scaler.unscale_(optimizer)
        assert parameter.grad is not None
        survived[factor] = parameter.grad
    smallest = amp.precision.smallest_normal * amp.precision.eps
    assert bool((survived[1.0] == (2.0**-26 if smallest <= 2.0**-26 else 0.0)).all())
    assert bool((survived[65536.0] == 2.0**-26).all()), "scaling does not keep small gradients"


@pytest.mark.parametrize(("keyword", "value"), [("growth_factor", 1.0), ("backoff_factor", 1.0)])
def test_factors_that_would_not_move_the_scale_are_refused(
    amp_scaler: ScalerFactory, keyword: str, value: float
) -> None:
    with pytest.raises(AssertionError, match="factor must be"):
        amp_scaler(**{keyword: value})
