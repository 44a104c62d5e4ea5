"""GradScaler around a compiled step: a step that overflows is skipped, the scale recovers, gradients equal eager's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, loss_of, mlp
from pytest_amp.compiled import Compilation
from pytest_amp.numerics import relative_error
from pytest_amp.torch_private import compiled_graphs

#: Relative error of a compiled AdamW: it is the capturable one, which computes the corrections of its averages
#: in float32, and 1 - beta2**t in the first step is a difference of numbers that are 1 / (1 - beta2) times as large.
_CAPTURABLE = 2.0**-24 / (1 - 0.999)


def _compiled(amp: SuiteAmp, backend: str) -> Case:
    case = Compilation(backend=backend, fullgraph=True).case(mlp(), amp.conditions)
    return replace(case, name=f"mlp,{backend}")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_does_what_a_scaler_asks(amp: SuiteAmp, backend: str) -> None:
    """Plant an overflow in a gradient (a graph has no module for it): the step is skipped and the scale recovers."""
    amp.check_scaler(_compiled(amp, backend), overflow_activations_at=())


def test_the_trace_is_that_of_eager(amp: SuiteAmp) -> None:
    """Compare scale, found-inf and skipped of each iteration with eager's, with overflow in two of them."""
    eager = amp.scaler_trace(mlp(), steps=6, overflow_gradients_at={2, 4})
    compiled = amp.scaler_trace(_compiled(amp, "aot_eager"), steps=6, overflow_gradients_at={2, 4})
    assert eager == compiled
    assert any(step.skipped for step in compiled)


def _layer_of_equal_gradients() -> Case:
    """Return a layer and a loss that is linear in its output, so that its gradients do not depend on its weights.

    The gradients of a network do: a rounding of float32 in an update turns that of a low-precision gradient over in the
    next step, and AdamW makes as large an update of the smallest gradient as of any other.
    """

    def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = model(batch["inputs"])
        return (output.float() * batch["slopes"]).mean()

    def batch() -> dict[str, torch.Tensor]:
        return {"inputs": torch.randn(16, 24), "slopes": torch.randn(16, 12)}

    return Case("layer of equal gradients", lambda: torch.nn.Linear(24, 12), batch, loss)


def _trained(
    amp: SuiteAmp, case: Case, *, loss: str | None = None, optimizer: str | None = None
) -> tuple[list[torch.Tensor], list[float], torch.optim.Optimizer]:
    """Run six steps with AdamW and a scaler, the third with an overflow; return the weights, scales and optimizer.

    ``loss`` and ``optimizer`` are the back ends by which the loss function and the optimizer's step are compiled.
    """
    realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    loss_function = case.loss if loss is None else torch.compile(case.loss, backend=loss, fullgraph=True)
    adamw: Any = torch.optim.AdamW(realised.model.parameters(), lr=1e-2)
    if optimizer is not None:
        adamw.step = torch.compile(adamw.step, backend=optimizer)
    scaler = torch.amp.GradScaler(amp.device.type, init_scale=2.0**10, growth_interval=2)
    scales = []
    for step in range(6):
        adamw.zero_grad()
        with amp.autocast():
            value = loss_of(loss_function(realised.model, realised.batch))
        scaler.scale(value * (float("inf") if step == 2 else 1.0)).backward()
        scaler.unscale_(adamw)
        torch.nn.utils.clip_grad_norm_(realised.model.parameters(), 1.0)
        scaler.step(adamw)
        scaler.update()
        scales.append(scaler.get_scale())
    return [parameter.detach().clone() for parameter in realised.model.parameters()], scales, adamw


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_loop_around_a_compiled_step_trains_as_in_eager(amp: SuiteAmp, backend: str) -> None:
    """A training with unscaling, clipping and a skipped step has eager's scales, and on a CPU eager's weights."""
    weights, scales, _ = _trained(amp, mlp())
    actual, actual_scales, _ = _trained(amp, mlp(), loss=backend)
    assert scales == actual_scales
    assert min(scales) < max(scales[:2]), "no step overflowed"
    for left, right in zip(weights, actual, strict=True):
        if amp.device.type == "cpu":
            assert torch.equal(left, right)
        else:
            # Updates of AdamW have the size of the learning rate, whatever the gradient's rounding.
            assert relative_error(right, left) <= amp.precision.u * amp.config.tolerance_scale


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.amp_long), "aot_eager"])
def test_a_compiled_optimizer_is_skipped_and_keeps_float32(amp: SuiteAmp, backend: str) -> None:
    """Compile ``optimizer.step`` inside the scaler: the same scales, the same training, float32 moments."""
    case, graphs = _layer_of_equal_gradients(), compiled_graphs()
    weights, scales, _ = _trained(amp, case)
    actual, actual_scales, optimizer = _trained(amp, case, optimizer=backend)
    assert compiled_graphs() > graphs, "the optimizer's step was not compiled"
    assert scales == actual_scales
    before = case.realise(seed=amp.config.seed).model.parameters()
    for start, left, right in zip(before, weights, actual, strict=True):
        error = (right - left).norm() / (left - start.detach().to(left.device)).norm()
        assert error <= _CAPTURABLE * amp.config.tolerance_scale, f"error {float(error):.2g} of the updates"
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert {value.dtype for value in states if isinstance(value, torch.Tensor)} == {torch.float32}
