"""Gradients of one batch, of consecutive micro-batches, and of recomputed parts are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, Realised, decoder, loss_of, mlp
from pytest_amp.devices import DeviceKind
from pytest_amp.numerics import is_hollow, predict, relative_error, run_step


def parts(realised: Realised, count: int) -> list[dict[str, Tensor]]:
    """Return the batch in ``count`` equal parts."""
    chunks = {name: value.detach().chunk(count) for name, value in realised.batch.items()}
    return [{name: values[index] for name, values in chunks.items()} for index in range(count)]


def accumulated(amp: SuiteAmp, case: Case, model: nn.Module, batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return gradients of the mean loss over ``batches``, each in a region of its own."""
    for batch in batches:
        with amp.autocast():
            outputs = case.loss(model, batch)
        torch.autograd.backward(loss_of(outputs) * (SCALE / len(batches)))
    return {name: p.grad / SCALE for name, p in model.named_parameters() if p.grad is not None}


#: Loss scale for fp16; as a power of two it does not change bf16's results.
SCALE = 2.0**12


def test_sums_of_micro_batches_stay_in_float32(amp: SuiteAmp) -> None:
    """Accumulate 32 parts of one row: the result is exactly the float32 sum of the parts' own gradients."""
    case, device = mlp(), amp.device.torch_device
    origin = case.realise(seed=amp.config.seed).on(device)
    batches = parts(origin, 32)
    together = accumulated(amp, case, origin.on(device).model, batches)
    sums: dict[str, Tensor] = {}
    for batch in batches:
        model = origin.on(device).model
        with amp.autocast():
            outputs = case.loss(model, batch)
        torch.autograd.backward(loss_of(outputs) * (SCALE / len(batches)))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            sums[name] = sums[name] + parameter.grad if name in sums else parameter.grad
    for name, value in together.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, sums[name] / SCALE), f"{name} is not the float32 sum of its parts"
        assert not is_hollow(value, amp.dtype), f"{name} was rounded to {amp.dtype} when it was accumulated"


def test_micro_batches_equal_one_batch(amp: SuiteAmp) -> None:
    """Compare within the noise of one batch: accumulation rounds each part, and averages the errors."""
    case, device = mlp(), amp.device.torch_device
    origin = case.realise(seed=amp.config.seed)
    prediction = predict(case, origin, amp.device, amp.precision, seed=amp.config.seed)
    exact = prediction.exact.named()
    together = accumulated(amp, case, origin.on(device).model, parts(origin.on(device), 8))
    for name, value in together.items():
        error = relative_error(value, exact[name], scale=prediction.sizes[name])
        allowed = 2 * max(prediction.noise[name], amp.precision.u) * amp.config.tolerance_scale
        amp.observe(f"micro_batches/{name}", error, kind="error", unit="relative L2", allowed=allowed)
        assert error <= allowed, f"{name} has an error of {error:.3g}, one batch of {prediction.noise[name]:.3g}"


class Checkpointed(nn.Module):
    """Model whose blocks are recomputed in the backward pass."""

    def __init__(self, model: nn.Module, *, reentrant: bool) -> None:
        """Wrap ``model``, a decoder."""
        super().__init__()
        self.model, self.reentrant = model, reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the model's own forward, with each block behind a checkpoint."""
        blocks = self.model.get_submodule("blocks")
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks:
            block.forward = self._recomputed(block.forward)
        try:
            logits: Tensor = self.model(tokens)
        finally:
            for block in blocks:
                del block.forward
        return logits

    def _recomputed(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: checkpoint(forward, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True], ids=["non_reentrant", "reentrant"])
def test_checkpointed_equals_plain(amp: SuiteAmp, *, reentrant: bool) -> None:
    """Compare bitwise on a CPU; on an accelerator within one rounding, since its backward may sum in any order."""
    case, device = decoder(), amp.device.torch_device
    origin = case.realise(seed=amp.config.seed)
    plain = run_step(case, origin.on(device), amp.autocast, seed=amp.config.seed, loss_scale=SCALE)
    copy = origin.on(device)
    recomputed = run_step(
        case, Realised(Checkpointed(copy.model, reentrant=reentrant), copy.batch), amp.autocast, seed=amp.config.seed,
        loss_scale=SCALE,
    )  # fmt: skip
    for name, value in plain.gradients.items():
        again = recomputed.gradients[f"model.{name}"]
        assert value is not None
        assert again is not None, f"{name} has no gradient behind a checkpoint"
        most = 0.0 if amp.device.kind is DeviceKind.CPU else amp.precision.u
        assert relative_error(again, value) <= most, f"{name} is not the same behind a checkpoint"
