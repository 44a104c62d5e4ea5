"""GradScaler around a compiled step: overflow is skipped, the scale recovers, unscaled gradients are eager's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_amp.amp import Amp
from pytest_amp.cases import Case, loss_of, mlp
from pytest_amp.compiled import Compilation
from pytest_amp.numerics import relative_error


def _compiled(amp: Amp, backend: str) -> Case:
    case = Compilation(backend=backend, fullgraph=True).case(mlp(), amp.conditions)
    return replace(case, name=f"mlp,{backend}")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_does_what_a_scaler_asks(amp: Amp, backend: str) -> None:
    """Overflow planted in a gradient: skipped, backed off, recovered. In a graph there is no module to plant it in."""
    amp.check_scaler(_compiled(amp, backend), forward_at=())


def test_the_trace_is_that_of_eager(amp: Amp) -> None:
    """Scale, found-inf and skipped of each iteration, with overflow in two of them."""
    eager = amp.scaler_trace(mlp(), steps=6, overflow_at={2, 4})
    compiled = amp.scaler_trace(_compiled(amp, "aot_eager"), steps=6, overflow_at={2, 4})
    assert eager == compiled
    assert any(step.skipped for step in compiled)


def _trained(amp: Amp, backend: str | None) -> tuple[list[torch.Tensor], list[float]]:
    """The weights after six steps of a usual loop with AdamW and a scaler, the third of which overflows."""
    case = mlp()
    realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    loss_function = case.loss if backend is None else torch.compile(case.loss, backend=backend, fullgraph=True)
    optimizer = torch.optim.AdamW(realised.model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(amp.device.type, init_scale=2.0**10, growth_interval=2)
    scales = []
    for step in range(6):
        optimizer.zero_grad()
        with amp.autocast():
            loss = loss_of(loss_function(realised.model, realised.batch))
        scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(realised.model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [parameter.detach().clone() for parameter in realised.model.parameters()], scales


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_loop_around_a_compiled_step_trains_as_in_eager(amp: Amp, backend: str) -> None:
    """Unscaled, clipped, skipped and updated: the same scales, and on a CPU the same weights, bit for bit."""
    weights, scales = _trained(amp, None)
    found, found_scales = _trained(amp, backend)
    assert scales == found_scales
    assert min(scales) < max(scales[:2]), "no step overflowed"
    for left, right in zip(weights, found, strict=True):
        if amp.device.type == "cpu":
            assert torch.equal(left, right)
        else:
            # Updates of AdamW have the size of the learning rate, whatever the gradient's rounding.
            assert relative_error(right, left) <= amp.precision.u * amp.config.tolerance_scale
