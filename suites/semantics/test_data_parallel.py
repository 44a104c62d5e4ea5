"""Replicas in torch's own threads: ``parallel_apply`` and ``DataParallel`` use the caller's region."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn.parallel import parallel_apply

from pytest_amp.amp import SuiteAmp

from .state import State

ON_CUDA = pytest.mark.amp(devices=["cuda"])  # parallel_apply asks for an accelerator's stream, on a CPU, too


class _Seen(nn.Module):
    """Layer that records the state of each of its forwards."""

    def __init__(self, amp: SuiteAmp, *, own_region: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4).to(amp.device.torch_device)
        self.notes = _Notes(amp, own_region=own_region)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if not self.notes.own_region:
            return self._forward(batch)
        with self.notes.amp.autocast():
            return self._forward(batch)

    def _forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.notes.states.append(State.now(self.notes.amp.device.type))
        return self.layer(batch)  # type: ignore[no-any-return]


@dataclass
class _Notes:
    """Record shared by the replicas of a module: replication copies modules and tensors, but no other attributes."""

    amp: SuiteAmp
    own_region: bool
    states: list[State] = field(default_factory=list)


def _parts(amp: SuiteAmp) -> list[torch.Tensor]:
    return [torch.randn(3, 8, device=amp.device.torch_device) for _ in range(2)]


@ON_CUDA
@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_parallel_apply_takes_the_region_along(amp: SuiteAmp, *, enabled: bool) -> None:
    """Its threads are in a region if the caller is, and leave the caller's state unchanged."""
    model, parts = _Seen(amp), _parts(amp)
    with amp.autocast(enabled=enabled):
        before = State.now(amp.device.type)
        actual = parallel_apply([model, model], parts, devices=[0, 0])
        after = State.now(amp.device.type)
    assert before == after
    assert [state.enabled for state in model.notes.states] == [enabled, enabled]
    assert [output.dtype is torch.float32 for output in actual] == [not enabled, not enabled]


@pytest.mark.amp(devices=["cuda"])
def test_parallel_apply_takes_the_dtype_along(amp: SuiteAmp) -> None:
    model, parts = _Seen(amp), _parts(amp)
    with amp.autocast():
        expected = [model(part) for part in parts]
        actual = parallel_apply([model, model], parts, devices=[0, 0])
    for left, right in zip(actual, expected, strict=True):
        assert left.dtype is amp.dtype
        assert torch.equal(left, right)


@ON_CUDA
def test_a_replicas_own_region_decides(amp: SuiteAmp) -> None:
    """The region is in ``forward``, as torch's documentation requires: the results are bitwise those of one thread."""
    model, parts = _Seen(amp, own_region=True), _parts(amp)
    actual = parallel_apply([model, model], parts, devices=[0, 0])
    expected = [model(part) for part in parts]
    for left, right in zip(actual, expected, strict=True):
        assert left.dtype is amp.dtype
        assert torch.equal(left, right)
    gradients = [
        torch.autograd.grad(torch.cat(outputs).float().sum(), model.layer.weight)[0] for outputs in (actual, expected)
    ]
    assert gradients[0].dtype is torch.float32
    assert torch.allclose(gradients[0], gradients[1], rtol=4 * amp.precision.u, atol=4 * amp.precision.u)


def test_data_parallel_on_one_device_is_the_module(amp: SuiteAmp) -> None:
    """Without threads it uses the region of the caller, with its dtype and its cache."""
    model, batch = _Seen(amp), _parts(amp)[0]
    parallel = nn.DataParallel(model, device_ids=[0]) if amp.device.type == "cuda" else nn.DataParallel(model)
    if amp.device.type == "cpu":
        parallel.device_ids = []  # an accelerator would be used if there is one
    with amp.autocast(cache_enabled=False):
        here = State.now(amp.device.type)
        actual = parallel(batch)
        expected = model(batch)
    assert model.notes.states == [here, here]
    assert actual.dtype is amp.dtype
    assert torch.equal(actual, expected)


@ON_CUDA
@pytest.mark.parametrize("where", ["around", "inside"])
def test_data_parallel_on_two_devices_is_one_device(amp: SuiteAmp, where: str) -> None:
    """Compare results of the whole batch, and gradients, which are summed over the devices."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two CUDA devices, there is {torch.cuda.device_count()}")
    model = _Seen(amp, own_region=where == "inside")
    batch = torch.cat(_parts(amp))
    parallel = nn.DataParallel(model, device_ids=[0, 1])
    with amp.autocast(enabled=where == "around"):
        actual, expected = parallel(batch), model(batch)
    assert actual.dtype is amp.dtype
    assert len(model.notes.states) == 3, "the batch was not divided"
    assert torch.allclose(actual.float(), expected.float(), rtol=2 * amp.precision.u, atol=2 * amp.precision.u)
    gradients = [torch.autograd.grad(output.float().sum(), model.layer.weight)[0] for output in (actual, expected)]
    assert gradients[0].dtype is torch.float32
    assert torch.allclose(gradients[0], gradients[1], rtol=4 * amp.precision.u, atol=4 * amp.precision.u)
