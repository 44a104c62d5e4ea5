"""Work that keeps a GPU busy costs under autocast hardly more than in float32, IEEE or TF32."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch

from pytest_amp.amp import Amp
from pytest_amp.cases import DecoderSize, decoder
from pytest_amp.speed import NO_HARM, kinds_of_float32
from pytest_amp.targets import Target

#: A product that takes a quarter of a millisecond on the fastest cards: far longer than its launch.
SIDE = 4096
#: Few layers, many tokens: each kernel takes longer than its launch, and a step takes some ten milliseconds.
SIZE = DecoderSize(layers=2, width=1024, heads=16, vocabulary=1024)


def kinds(target: Target) -> Iterable[object]:
    return [pytest.param(kind, id=f"over_{kind}") for kind in kinds_of_float32(target.device, target.precision)]


pytestmark = [pytest.mark.amp_parametrize("over", kinds), pytest.mark.usefixtures("benchmark")]


def test_matrix_product(amp: Amp, over: str) -> None:
    def product() -> Callable[[], torch.Tensor]:
        a, b = (torch.randn(SIDE, SIDE, device=amp.device.torch_device) for _ in range(2))
        return lambda: a @ b

    amp.check_speedup(product, name=f"matmul-{SIDE}", floor=NO_HARM, over=over)


def test_decoder_step(amp: Amp, over: str) -> None:
    case = decoder(SIZE, batch=8, context=1024)
    amp.check_speedup(case, name=f"decoder-{SIZE.layers}x{SIZE.width}", floor=NO_HARM, over=over)
