"""bf16 needs no scaler: it has float32's range, and training with a scaler has the bits of training without.

The measured values are in docs/lab/scaler.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, cnn, decoder, loss_of, mlp
from pytest_amp.failure import AmpFailure

from .training import ScalerFactory

CASES: dict[str, Callable[[], Case]] = {"mlp": lambda: mlp(width=32), "cnn": cnn, "decoder": decoder}
_STEPS = 8


def _train(
    amp: SuiteAmp, case: Case, scaler: torch.amp.GradScaler, *, optimizer: str, factor: float = 1.0
) -> tuple[list[float], list[torch.Tensor], float]:
    """Return losses, final parameters, and the share of gradients that are exactly zero."""
    realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    parameters = list(realised.model.parameters())
    instance = getattr(torch.optim, optimizer)(parameters, lr=2.0**-8)
    losses, zeros = [], 0
    for _ in range(_STEPS):
        instance.zero_grad()
        with amp.autocast():
            loss = loss_of(case.loss(realised.model, realised.batch))
        scaled: Any = scaler.scale(loss * factor)
        scaled.backward()
        scaler.unscale_(instance)
        zeros += sum(int((p.grad == 0).sum()) for p in parameters if p.grad is not None)
        scaler.step(instance)
        scaler.update()
        losses.append(loss.item())
    size = _STEPS * sum(p.numel() for p in parameters if p.grad is not None)
    return losses, [p.detach() for p in parameters], zeros / size


@pytest.mark.amp(dtypes=["bf16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_trajectory_is_the_same_without_a_scaler(
    amp: SuiteAmp, amp_scaler: ScalerFactory, case: str, optimizer: str
) -> None:
    """Compare losses and parameters of every step at the default scale, 65536; no step is skipped."""
    runs = [
        _train(amp, CASES[case](), amp_scaler(growth_interval=3, enabled=enabled), optimizer=optimizer)
        for enabled in (False, True)
    ]
    (plain, without, _), (scaled, with_scaler, _) = runs
    different = sum(not torch.equal(left, right) for left, right in zip(without, with_scaler, strict=True))
    if plain != scaled or different:
        raise AmpFailure(
            f"a training of {case} with {optimizer} in bf16 differs with a scaler",
            label_before="rule",
            before=f"losses {plain}",
            now=f"losses {scaled}; parameters that differ: {different}",
            likely="scaling or unscaling is not exact, or a gradient is rounded to fp16",
        )


@pytest.mark.parametrize("exponent", [-20, -60])
def test_tiny_gradients_need_one_in_fp16_only(amp: SuiteAmp, amp_scaler: ScalerFactory, exponent: int) -> None:
    """Multiply the loss by 2**-20: fp16 loses its gradients without a scaler only; bf16 loses none either way."""
    factor = 2.0**exponent
    shares = [
        _train(amp, mlp(width=32), amp_scaler(init_scale=2.0**13 / factor, enabled=on), optimizer="SGD", factor=factor)[
            2
        ]
        for on in (False, True)
    ]
    amp.observe(f"gradients lost at 2**{exponent}, without and with", [str(round(s, 3)) for s in shares], kind="state")
    assert shares[1] < 0.001
    if amp.precision.name == "fp16":
        assert shares[0] > 0.99
    else:
        assert shares[0] < 0.001
