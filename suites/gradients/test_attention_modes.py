"""Attention and the transformer encoder in every mode and with every mask, on their fast paths, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error
from pytest_amp.precision import dtype_name
from pytest_amp.run.targets import Target

GRAD: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
MASKS = ("none", "causal", "causal_float", "padding")
TOKENS, WIDTH = 6, 32


@dataclass(frozen=True)
class Mode:
    """Training or evaluation, the grad mode, and the kind of mask."""

    module: str
    grad: str
    mask: str

    @property
    def id(self) -> str:
        """Return the name for test ids and keys."""
        return f"{self.module}-{self.grad}-{self.mask}"


def modes(_target: Target) -> Iterator[object]:
    for module in ("train", "eval"):
        for grad in GRAD:
            for mask in MASKS:
                mode = Mode(module, grad, mask)
                yield pytest.param(mode, id=mode.id)


def masks(kind: str, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return the attention mask and the padding mask."""
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=device).triu(1)
    if kind == "causal":
        return later, None
    if kind == "causal_float":
        return torch.zeros(TOKENS, TOKENS, device=device).masked_fill(later, -torch.inf), None
    if kind == "padding":
        lengths = torch.tensor([6, 4, 2], device=device)
        return None, torch.arange(TOKENS, device=device) >= lengths[:, None]
    return None, None


@pytest.mark.amp_parametrize("mode", modes)
def test_encoder(amp: SuiteAmp, mode: Mode) -> None:
    """The encoder runs, and is as near float32 as rounding allows; its dtype is recorded."""
    device = amp.device.torch_device
    mask, padding = masks(mode.mask, device)
    returned = {}

    def measured() -> dict[str, float]:
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2).to(device).train(mode.module == "train")
        x = torch.randn(3, TOKENS, WIDTH, device=device)
        results = []
        for enabled in (False, True):
            with warnings.catch_warnings(), GRAD[mode.grad](), amp.autocast(enabled=enabled):
                warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
                results.append(encoder(x, mask=mask, src_key_padding_mask=padding))
        plain, mixed = ((result if padding is None else result[~padding]).detach().clone() for result in results)
        assert mixed.isfinite().all()
        returned["result"] = mixed.dtype
        return {"result": relative_error(mixed, plain)}

    errors, over_seeds = amp.over_seeds(measured)
    error, allowed = errors["result"], MOST * amp.precision.u * amp.config.tolerance_scale
    what, again = f"encoder.{mode.id}/result", over_seeds.get("result")
    amp.observe(what, error, kind="error", unit="relative L2", allowed=allowed, over_seeds=again)
    amp.observe(f"{what}.dtype", dtype_name(returned["result"]), kind="dtype")
    assert error <= allowed, f"differs from float32 by {error:.3g}, more than the allowed {allowed:.3g}"


#: In units of u; measured 0.5, and 1.2 on the fast path, whose residual stream is in the low dtype (CPU, torch 2.13).
MOST = 3.0


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "with_weights"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_masks_of_all_dtypes_mean_the_same(amp: SuiteAmp, *, weights: bool, training: bool) -> None:
    """Boolean, float32 and low-precision masks give the same result (pytorch/pytorch#99012, #111276)."""
    device = amp.device.torch_device
    attention = nn.MultiheadAttention(WIDTH, 4).to(device).train(training)
    x = torch.randn(TOKENS, 3, WIDTH, device=device)
    boolean, float32 = masks("causal", device)[0], masks("causal_float", device)[0]
    assert float32 is not None
    results = []
    for mask in (boolean, float32, float32.to(amp.dtype)):
        with amp.autocast():
            results.append(attention(x, x, x, attn_mask=mask, need_weights=weights)[0].detach())
    for result in results[1:]:
        assert result.dtype == results[0].dtype
        assert relative_error(result, results[0]) <= amp.precision.u * amp.config.tolerance_scale
