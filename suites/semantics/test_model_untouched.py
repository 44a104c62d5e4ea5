"""Autocast casts copies: parameters, buffers, inputs and saved models stay unchanged."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from .models import loss_of, small


def _bits(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, int, int, torch.Tensor]]:
    return {key: (t.dtype, id(t), t.data_ptr(), t.detach().clone()) for key, t in tensors.items()}


def _changed(before: dict[str, tuple[torch.dtype, int, int, torch.Tensor]], now: dict[str, torch.Tensor]) -> list[str]:
    changed = [f"{key} is {'gone' if key in before else 'new'}" for key in sorted(before.keys() ^ now.keys())]
    for key in before.keys() & now.keys():
        dtype, identity, pointer, values = before[key]
        tensor = now[key]
        if tensor.dtype is not dtype:
            changed.append(f"{key} became {dtype_name(tensor.dtype)}")
        elif id(tensor) != identity or tensor.data_ptr() != pointer:
            changed.append(f"{key} is another tensor")
        elif not torch.equal(tensor, values):
            changed.append(f"{key} has other values")
    return changed


def test_parameters_are_left_alone(amp: SuiteAmp) -> None:
    """dtype, identity, storage and values are the same after forward and backward, also of frozen and tied ones."""
    model, batch = small(amp)
    before = _bits(dict(model.named_parameters()))
    with amp.autocast():
        loss = loss_of(model, batch)
    loss.backward()
    if changed := _changed(before, dict(model.named_parameters())):
        raise AmpFailure(
            f"a region changed parameters on {amp.target.id}: {'; '.join(changed)}",
            label_before="rule",
            before="autocast casts copies; a module's parameters stay float32",
            likely="the cast is made in place, or the cached copy is written back",
        )


def test_buffers_are_left_alone(amp: SuiteAmp) -> None:
    """A constant keeps its bits; statistics are updated in place, in float32."""
    model, batch = small(amp)
    constant, norm = _bits({"constant": model.constant}), model.norm
    where = {key: (t.dtype, t.data_ptr()) for key, t in model.named_buffers()}
    with amp.autocast():
        model(batch)
    assert _changed(constant, {"constant": model.constant}) == []
    assert {key: (t.dtype, t.data_ptr()) for key, t in model.named_buffers()} == where
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 1
    assert norm.running_mean.abs().sum() > 0, "BatchNorm did not update its statistics"
    dtypes = {key: dtype_name(t.dtype) for key, t in model.named_buffers()}
    amp.observe("buffers", [f"{key} {dtype}" for key, dtype in sorted(dtypes.items())], kind="dtype")


def test_inputs_are_left_alone(amp: SuiteAmp) -> None:
    model, batch = small(amp)
    batch.requires_grad_()
    before = _bits({"batch": batch})
    with amp.autocast():
        loss = loss_of(model, batch)
    loss.backward()
    assert _changed(before, {"batch": batch}) == []
    assert batch.grad is not None
    assert batch.grad.dtype is torch.float32


def test_every_parameter_gets_a_gradient_of_its_own_dtype(amp: SuiteAmp) -> None:
    """Gradients are non-zero where float32's are (NVIDIA/TransformerEngine#70: casts that lose their history)."""
    model, batch = small(amp)
    loss_of(model, batch).backward()
    float32 = {key: p.grad for key, p in model.named_parameters()}
    model, batch = small(amp)
    with amp.autocast():
        loss = loss_of(model, batch)
    loss.backward()
    wrong = []
    for key, parameter in model.named_parameters():
        expected = float32[key]
        if (parameter.grad is None) != (expected is None):
            wrong.append(f"{key} has {'no' if parameter.grad is None else 'a'} gradient")
        elif parameter.grad is not None and expected is not None:
            if parameter.grad.dtype is not parameter.dtype:
                wrong.append(f"{key}'s gradient is {dtype_name(parameter.grad.dtype)}")
            elif bool(parameter.grad.any()) != bool(expected.any()):
                wrong.append(f"{key}'s gradient is zero")
    amp.observe("gradients", [key for key, p in model.named_parameters() if p.grad is not None], kind="state")
    if wrong:
        raise AmpFailure(
            f"backward of a region on {amp.target.id}: {'; '.join(wrong)}",
            label_before="rule",
            before="each trainable parameter gets a gradient of its own dtype, where the float32 run gives it one",
            likely="the cast of a parameter has lost its gradient history",
        )


def test_low_parameters_stay_low(amp: SuiteAmp) -> None:
    """A model in a low dtype is not made float32, and its gradients have its dtype."""
    layer = torch.nn.Linear(4, 4).to(amp.device.torch_device, amp.dtype)
    batch = torch.randn(2, 4, device=amp.device.torch_device)
    with amp.autocast():
        result = layer(batch)
    result.float().sum().backward()
    assert result.dtype is amp.dtype
    assert layer.weight.dtype is amp.dtype
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is amp.dtype


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "state_dict"])
def test_a_copy_made_inside_a_region_is_exact(amp: SuiteAmp, copied: str) -> None:
    """A model that is saved or copied inside a region has its float32 parameters, not the cached casts."""
    model, batch = small(amp)
    with amp.autocast():
        loss_of(model, batch)
        expected = {key: value.detach().clone() for key, value in model.state_dict().items()}
        if copied == "deepcopy":
            actual = copy.deepcopy(model).state_dict()
        elif copied == "pickle":
            actual = pickle.loads(pickle.dumps(model)).state_dict()  # noqa: S301  # pickled just now
        else:
            actual = model.state_dict()
    assert actual.keys() == expected.keys()
    for key, value in actual.items():
        assert value.dtype is expected[key].dtype, f"{key} was copied as {dtype_name(value.dtype)}"
        assert torch.equal(value, expected[key]), f"{key} was copied with other values"


def test_an_optimizer_step_inside_a_region_is_a_float32_step(amp: SuiteAmp) -> None:
    """No operator of an optimizer is on a cast list: the step has the bits of one outside."""
    results = []
    for inside in (False, True):
        model, batch = small(amp)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        loss_of(model, batch).backward()
        with amp.autocast(enabled=inside):
            optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(left, right) for left, right in zip(*results, strict=True))
