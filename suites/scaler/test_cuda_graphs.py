"""GradScaler inside a CUDA graph, with a fused optimizer: an iteration without host synchronisation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.speed.replay import capturing

from .training import INF, ScalerFactory

pytestmark = pytest.mark.amp(devices=["cuda"])

_SCALE = 2.0**8


class Captured:
    """Model, fused optimizer and scaler, whose iteration runs on one static batch."""

    def __init__(self, amp: SuiteAmp, scaler: torch.amp.GradScaler, name: str) -> None:
        """Seed the model; the optimizer is capturable if the class knows the keyword."""
        torch.manual_seed(amp.config.seed)
        device = amp.device.torch_device
        self.amp, self.scaler = amp, scaler
        self.model = nn.Linear(16, 4).to(device)
        keywords = {"capturable": True} if name != "SGD" else {}
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), lr=2.0**-6, fused=True, **keywords)
        self.batch = torch.zeros(8, 16, device=device)
        self.start = {key: value.clone() for key, value in self.model.state_dict().items()}

    def iterate(self) -> None:
        """Run one iteration; the cast cache is off, since a graph must not keep casts of weights that change."""
        self.optimizer.zero_grad(set_to_none=False)
        with self.amp.autocast(cache_enabled=False):
            loss = self.model(self.batch).float().square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def warm_up(self) -> None:
        """Run three iterations on another stream, as capturing needs them, then restore everything in place."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.iterate()
        torch.cuda.current_stream().wait_stream(stream)

    def put_back(self) -> None:
        """Restore weights, optimizer state and scaler in the same tensors."""
        self.model.load_state_dict(self.start)
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": _SCALE, "_growth_tracker": 0})

    def run(self, iterate: Callable[[], object], batches: list[torch.Tensor]) -> list[tuple[float, int]]:
        """Return scale and tracker after each batch."""
        trace = []
        for batch in batches:
            self.batch.copy_(batch)
            iterate()
            saved = self.scaler.state_dict()
            trace.append((saved["scale"], saved["_growth_tracker"]))
        return trace


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_captured_iteration_is_the_eager_one(amp: SuiteAmp, amp_scaler: ScalerFactory, name: str) -> None:
    """Compare parameters, scale and tracker through growth and an overflow, replay for iteration."""
    device = amp.device.torch_device
    batches = [torch.randn(8, 16, generator=torch.Generator().manual_seed(i)).to(device) for i in range(8)]
    batches[4].fill_(INF)
    traces, ends = [], []
    for captured in (False, True):
        subject = Captured(amp, amp_scaler(init_scale=_SCALE, growth_interval=3), name)
        subject.warm_up()
        graph = torch.cuda.CUDAGraph()
        if captured:
            with capturing(graph):
                subject.iterate()
        subject.put_back()
        traces.append(subject.run(graph.replay if captured else subject.iterate, batches))
        ends.append([p.detach().clone() for p in subject.model.parameters()])
    assert traces[0] == traces[1], "the captured scaler has other scales"
    assert traces[0][4][0] < traces[0][3][0], "no overflow"
    assert all(torch.equal(left, right) for left, right in zip(*ends, strict=True))
    assert all(bool(p.isfinite().all()) for p in ends[1])
