"""Host synchronisations that the scaler adds to those of the optimizer's own step: counted, not timed.

``scale``, ``unscale_`` and ``update`` wait for nothing, ``step`` reads one found-inf for each device that holds
gradients, and a fused optimizer none. A CPU does not wait; there the reads themselves are counted, which on an
accelerator are the waits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.torch_private import counted_reads, recorded_calls

from .training import INF, ScalerFactory

#: The synchronisations that the scaler may add in each call, for a loop and a fused optimizer, on one device.
ALLOWED = {
    "scale": {"loop": 0, "foreach": 0, "fused": 0},
    "unscale_": {"loop": 0, "foreach": 0, "fused": 0},
    "step": {"loop": 1, "foreach": 1, "fused": 0},
    "step after unscale_": {"loop": 1, "foreach": 1, "fused": 0},
    "update": {"loop": 0, "foreach": 0, "fused": 0},
    "update(new_scale)": {"loop": 0, "foreach": 0, "fused": 0},
    "get_scale": {"loop": 1, "foreach": 1, "fused": 1},
    "state_dict": {"loop": 2, "foreach": 2, "fused": 2},
}
_KEYWORDS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def _waits(call: Callable[[], object]) -> int:
    """Count synchronisations as CUDA's debug mode reports them."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def _counter(amp: SuiteAmp) -> Callable[[Callable[[], object]], int]:
    """Return a counter of reads on the CPU, of waits on CUDA."""
    return _waits if amp.device.type == "cuda" else counted_reads


class Subject:
    """Three parameters with gradients, and calls that each bring the iteration to the required stage."""

    def __init__(self, amp: SuiteAmp, scaler: torch.amp.GradScaler, kind: str, *, name: str = "SGD") -> None:
        """Take the optimizer's implementation as ``kind``."""
        device = amp.device.torch_device
        self.scaler = scaler
        self.loss = torch.ones((), device=device)
        self.parameters = [nn.Parameter(torch.ones(4, device=device)) for _ in range(3)]
        self.optimizer = getattr(torch.optim, name)(self.parameters, lr=0.5, **_KEYWORDS[kind])

    def backward(self, bad: float | None = None) -> None:
        """Set scaled gradients, without a backward."""
        self.scaler.scale(self.loss)
        for parameter in self.parameters:
            parameter.grad = torch.ones_like(parameter)
        if bad is not None:
            gradient = self.parameters[1].grad
            assert gradient is not None
            gradient[2] = bad

    def count(self, call: str, counted: Callable[[Callable[[], object]], int]) -> int:
        """Count the reads of ``call``, less those of the optimizer's own step."""
        scaler, optimizer = self.scaler, self.optimizer
        self.backward()
        alone = counted(optimizer.step)  # creates the state, too, so that both are later steps
        alone = counted(optimizer.step)
        before: dict[str, Callable[[], object]] = {
            "step after unscale_": lambda: scaler.unscale_(optimizer),
            "update": lambda: scaler.step(optimizer),
        }
        calls: dict[str, Callable[[], object]] = {
            "scale": lambda: scaler.scale(self.loss),
            "unscale_": lambda: scaler.unscale_(optimizer),
            "step": lambda: scaler.step(optimizer),
            "step after unscale_": lambda: scaler.step(optimizer),
            "update": scaler.update,
            "update(new_scale)": lambda: scaler.update(4.0),
            "get_scale": scaler.get_scale,
            "state_dict": scaler.state_dict,
        }
        if call in before:
            before[call]()
        return counted(calls[call]) - (alone if call.startswith("step") else 0)


def _expect(amp: SuiteAmp, call: str, kind: str, actual: int) -> None:
    """Record the count; raise AmpFailure if it differs from the expected one."""
    amp.observe(f"reads in {call}, {kind}", actual, kind="count")
    correct = ALLOWED[call][kind]
    if actual != correct:
        raise AmpFailure(
            f"{call} with an optimizer of the kind {kind} reads {actual} values on the host",
            label_before="rule",
            before=f"{correct}, without the reads of the optimizer's own step",
            now=f"{actual} on torch {torch.__version__}, {amp.device.describe()}",
            likely="the scaler waits for the device where it did not before: each costs the whole queue",
        )


@pytest.mark.amp(devices=["cpu"])
@pytest.mark.parametrize("kind", _KEYWORDS)
@pytest.mark.parametrize("call", ALLOWED)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_reads_on_the_cpu(amp: SuiteAmp, amp_scaler: ScalerFactory, call: str, kind: str, name: str) -> None:
    subject = Subject(amp, amp_scaler(init_scale=8.0), kind, name=name)
    actual = subject.count(call, counted_reads)
    if name == "SGD":
        _expect(amp, call, kind, actual)
    else:
        assert actual == ALLOWED[call][kind], f"with {name}, {call} reads {actual} values on the host"


@pytest.mark.amp(devices=["cuda"])
def test_waits_can_be_counted(amp: SuiteAmp) -> None:
    """Verify the counter: each read on the host is one, and a kernel none."""
    one = torch.ones((), device=amp.device.torch_device)
    assert _waits(one.item) == 1
    assert _waits(lambda: [one.item(), one.tolist()]) == 2
    assert _waits(lambda: one.add_(1)) == 0


@pytest.mark.amp(devices=["cuda"])
@pytest.mark.parametrize("kind", _KEYWORDS)
@pytest.mark.parametrize("call", ALLOWED)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_waits_on_cuda(amp: SuiteAmp, amp_scaler: ScalerFactory, call: str, kind: str, name: str) -> None:
    actual = Subject(amp, amp_scaler(init_scale=8.0), kind, name=name).count(call, _waits)
    if name == "SGD":
        _expect(amp, call, kind, actual)
    else:
        assert actual == ALLOWED[call][kind], f"with {name}, {call} waits {actual} times"


@pytest.mark.amp(devices=["cpu", "cuda"])
@pytest.mark.parametrize("kind", _KEYWORDS)
def test_a_skipped_step_reads_no_more(amp: SuiteAmp, amp_scaler: ScalerFactory, kind: str) -> None:
    """The one read of ``step`` decides; a fused optimizer decides on the device."""
    subject = Subject(amp, amp_scaler(init_scale=8.0), kind)
    subject.backward(INF)
    assert _counter(amp)(lambda: subject.scaler.step(subject.optimizer)) == ALLOWED["step"][kind]


@pytest.mark.amp(devices=["cpu", "cuda"])
def test_each_optimizer_is_read_once(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    scaler = amp_scaler(init_scale=8.0)
    subjects = [Subject(amp, scaler, "loop") for _ in range(3)]
    for subject in subjects:
        subject.backward()
    assert _counter(amp)(lambda: [scaler.step(subject.optimizer) for subject in subjects]) == 3
    assert _counter(amp)(scaler.update) == 0


def test_gradients_of_one_dtype_are_unscaled_at_once(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Unscaling is one call, however many gradients there are: one for each of hundreds would wait for launches."""
    device = amp.device.torch_device
    dtypes = [torch.float32] * 4 + ([] if device.type == "mps" else [torch.float64] * 2)
    parameters = [nn.Parameter(torch.ones(4, device=device, dtype=dtype)) for dtype in dtypes]
    optimizer, scaler = torch.optim.SGD(parameters, lr=0.5), amp_scaler(init_scale=8.0)
    scaler.scale(torch.ones((), device=device))
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 8.0)
    with recorded_calls() as calls:
        scaler.unscale_(optimizer)
    count = sum("_amp_foreach_non_finite_check_and_unscale_" in call.operator for call in calls)
    assert count == len(set(dtypes)), f"{count} calls for gradients of {len(set(dtypes))} dtypes"


@pytest.mark.amp(devices=["cuda"])
def test_each_device_is_read_once(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Gradients on two GPUs take two reads in ``step``."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    parameters = [nn.Parameter(torch.ones(4, device=f"cuda:{index}")) for index in range(2)]
    optimizer, scaler = torch.optim.SGD(parameters, lr=0.5, foreach=False), amp_scaler(init_scale=8.0)
    scaler.scale(torch.ones((), device=amp.device.torch_device))
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 8.0)
    assert _waits(lambda: scaler.step(optimizer)) == 2
    assert [float(p.detach()[0]) for p in parameters] == [0.5, 0.5]
