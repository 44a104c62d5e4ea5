"""Deterministic runs repeat bit for bit, and a run resumed from a file equals the uninterrupted one."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target
from pytest_amp.training import characters, run

from .trajectories import TASKS, same, snapshot, trained

_STEPS = 12
_AT = 5


@pytest.mark.parametrize("task", TASKS)
def test_a_run_repeats_bit_for_bit(amp: SuiteAmp, task: str) -> None:
    """Compare losses, parameters, buffers, optimizer state and scale of a second run in the same process."""
    runs = trained(amp, task)
    first, second = runs.run(low=True), run(runs.setup, low=True)
    assert second.losses == first.losses
    for part in ("model", "optimizer", "scaler"):
        left, right = (getattr(run, part).state_dict() for run in (first, second))
        different = [name for name in left if not same(left[name], right[name])]
        assert different == [], f"the state of the {part} differs in a second run: {', '.join(different)}"


@dataclass
class Run:
    """Complete state of a resumable training: model with dropout, optimizer, scheduler, scaler, average, rng."""

    amp: SuiteAmp
    scaler: torch.amp.GradScaler
    trace: list[tuple[float, float, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Build a decoder of characters, with dropout on its logits, so that the generator's state matters."""
        self.case = characters().case
        torch.manual_seed(self.amp.config.seed)
        decoder = self.case.build()
        self.model = nn.Sequential(decoder, nn.Dropout(0.1)).to(self.amp.device.torch_device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=_STEPS)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step(self) -> None:
        """Run one iteration; the batch comes from the generator of the CPU, dropout from that of the device."""
        batch = {name: value.to(self.amp.device.torch_device) for name, value in self.case.batch().items()}
        self.optimizer.zero_grad()
        with self.amp.autocast():
            outputs: Any = self.case.loss(self.model, batch)
        loss = outputs["loss"]
        scaled: Any = self.scaler.scale(loss)
        scaled.backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
            self.average.update_parameters(self.model)
        state = self.scaler.state_dict()
        self.trace.append((loss.item(), state["scale"], state["_growth_tracker"], self.optimizer.param_groups[0]["lr"]))

    @property
    def parts(self) -> dict[str, Any]:
        """Return the parts that have a state dict."""
        names = ("model", "optimizer", "scheduler", "scaler", "average")
        return {name: getattr(self, name) for name in names}

    def save(self) -> io.BytesIO:
        """Save a checkpoint, including the states of the generators."""
        file = io.BytesIO()
        states = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save({**states, "rng": self.generators()}, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO, *, without: str | None = None) -> None:
        """Load with ``weights_only``; ``without`` names a part that is not loaded, as in an incomplete script."""
        checkpoint = torch.load(file, weights_only=True)
        for name, part in self.parts.items():
            if name != without:
                part.load_state_dict(checkpoint[name])
        self.set_generators({name: state for name, state in checkpoint["rng"].items() if without not in ("rng", name)})

    def generators(self) -> dict[str, torch.Tensor]:
        """Return the states of the CPU's generator, which draws batches, and of the device's, which draws dropout."""
        states = {"cpu": torch.get_rng_state()}
        if self.amp.device.type != "cpu":
            states["device"] = torch.get_device_module(self.amp.device.torch_device).get_rng_state()
        return states

    def set_generators(self, states: dict[str, torch.Tensor]) -> None:
        """Set the states of the given generators."""
        if "cpu" in states:
            torch.set_rng_state(states["cpu"])
        if "device" in states:
            torch.get_device_module(self.amp.device.torch_device).set_rng_state(states["device"])


def _scaler(amp_scaler: Any, scale: float) -> Any:
    """Return a scaler in the middle of a growth interval at the resume; in fp16 its scale starts too high."""
    return amp_scaler(init_scale=scale, growth_interval=4)


def _resumed(amp: SuiteAmp, amp_scaler: Any, without: str | None = None) -> tuple[Run, Run, Run]:
    """Return the run without an interruption, the one before it, and the one after it in new objects."""
    whole, first, second = (Run(amp, _scaler(amp_scaler, scale)) for scale in (2.0**17, 2.0**17, 2.0**3))
    torch.manual_seed(amp.config.seed)
    for _ in range(_STEPS):
        whole.step()
    torch.manual_seed(amp.config.seed)
    for _ in range(_AT):
        first.step()
    file = first.save()
    torch.manual_seed(amp.config.seed + 1)  # a new process has a new generator
    second.load(file, without=without)
    for _ in range(_STEPS - _AT):
        second.step()
    return whole, first, second


def test_a_resumed_run_is_the_one_without_a_break(amp: SuiteAmp, amp_scaler: Any) -> None:
    """Compare model, optimizer, scheduler, scaler, average and generator after resuming in new objects, bit for bit."""
    whole, first, second = _resumed(amp, amp_scaler)
    actual = first.trace + second.trace
    if actual != whole.trace:
        at = next(index for index, (a, b) in enumerate(zip(actual, whole.trace, strict=True)) if a != b)
        raise AmpFailure(
            f"a training that is resumed at step {_AT} on {amp.target.id} differs from step {at} on",
            label_before="rule",
            before=f"loss, scale, growth tracker, rate {whole.trace[at]}",
            now=f"{actual[at]}",
            likely="a state dict loses something, or does not take it back: scaler, optimizer, scheduler, generator",
        )
    ends = [{name: part.state_dict() for name, part in run.parts.items()} for run in (whole, second)]
    different = [name for name in ends[0] if not same(ends[0][name], ends[1][name])]
    assert different == [], f"the state differs after resuming: {', '.join(different)}"


def _left_out(target: Target) -> list[str]:
    """Return the parts to forget: an accelerator has its own generator, which ``torch.get_rng_state`` leaves out."""
    return ["scaler", "rng", "optimizer", *(["device"] if target.device.type == "cuda" else [])]


@pytest.mark.amp_parametrize("without", _left_out)
def test_what_a_checkpoint_leaves_out_shows(amp: SuiteAmp, amp_scaler: Any, without: str) -> None:
    """Prove that the test above can fail: resuming without scaler, generator or optimizer is a different training."""
    whole, first, second = _resumed(amp, amp_scaler, without)
    assert first.trace + second.trace != whole.trace


def test_a_checkpoint_holds_float32(amp: SuiteAmp, amp_scaler: Any) -> None:
    """The file has the dtype of the master weights, and loading it leaves the saved training unchanged."""
    run = Run(amp, _scaler(amp_scaler, 2.0**10))
    torch.manual_seed(amp.config.seed)
    for _ in range(3):
        run.step()
    before = snapshot({name: part.state_dict() for name, part in run.parts.items()})
    saved = torch.load(run.save(), weights_only=True)
    tensors = [*saved["model"].values(), *saved["average"].values()]
    tensors += [value for state in saved["optimizer"]["state"].values() for value in state.values()]
    assert {t.dtype for t in tensors if t.is_floating_point()} == {torch.float32}
    assert same(before, {name: part.state_dict() for name, part in run.parts.items()})
