"""Running statistics of normalisation layers are computed, retained and updated in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import exceeds, is_hollow, relative_error
from pytest_amp.precision import FP32
from pytest_amp.run.targets import Target

#: 80 channels: enough values to tell whether they were rounded.
CHANNELS = 80

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(CHANNELS), (64, CHANNELS)),
    "BatchNorm1d_of_sequences": (lambda: nn.BatchNorm1d(CHANNELS), (16, CHANNELS, 9)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(CHANNELS), (8, CHANNELS, 5, 5)),
    "BatchNorm2d_plain": (lambda: nn.BatchNorm2d(CHANNELS, affine=False), (8, CHANNELS, 5, 5)),
    "BatchNorm2d_cumulative": (lambda: nn.BatchNorm2d(CHANNELS, momentum=None), (8, CHANNELS, 5, 5)),
    "BatchNorm2d_channels_last": (lambda: nn.BatchNorm2d(CHANNELS), (8, CHANNELS, 5, 5)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(CHANNELS), (4, CHANNELS, 3, 3, 3)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(CHANNELS, track_running_stats=True), (8, CHANNELS, 5, 5)),
}


def inputs(name: str, steps: int) -> list[Tensor]:
    """Return batches whose channels differ in mean and scale."""
    shape = LAYERS[name][1]
    scale = torch.linspace(0.5, 3.0, CHANNELS).view(CHANNELS, *[1] * (len(shape) - 2))
    batches = [torch.randn(shape) * scale + scale.flip(0) for _ in range(steps)]
    return [batch.contiguous(memory_format=torch.channels_last) if "last" in name else batch for batch in batches]


def layers(_target: Target) -> Iterator[object]:
    """Yield each layer on inputs in the autocast dtype and in float32."""
    for name in LAYERS:
        for dtype in ("low", "float32"):
            yield pytest.param((name, dtype), id=f"{name}-{dtype}")


@pytest.mark.amp_parametrize("layer_of", layers)
def test_statistics_are_float32(amp: SuiteAmp, layer_of: tuple[str, str]) -> None:
    """Three updates from the same values end where float64 does, up to float32's own rounding."""
    name, dtype = layer_of
    layer, exact = LAYERS[name][0]().to(amp.device.torch_device), LAYERS[name][0]().double()
    for batch in inputs(name, 3):
        value = batch.to(amp.dtype) if dtype == "low" else batch
        exact(value.double())
        with amp.autocast():
            layer(value.to(amp.device.torch_device))
    expected = dict(exact.named_buffers())
    for buffer, value in layer.named_buffers():
        if not value.is_floating_point():
            assert torch.equal(value.cpu(), expected[buffer]), (
                f"{buffer} counts {value} updates, not {expected[buffer]}"
            )
            continue
        error = relative_error(value, expected[buffer])
        allowed = FEW * FP32.u * amp.config.tolerance_scale
        amp.observe(f"{name}.{dtype}/{buffer}", error, kind="error", unit="relative L2", allowed=allowed)
        if value.dtype != torch.float32 or is_hollow(value, amp.dtype) or exceeds(error, allowed):
            raise AmpFailure(
                f"{name}: {buffer} differs from float64 by {error:.3g} after 3 {dtype} batches, "
                f"more than the allowed {allowed:.3g}",
                label_before="exact",
                before="float64 statistics of the same values",
                now=f"{value.dtype}, torch {torch.__version__}, {amp.device.describe()}",
                likely="the statistics are computed, updated or kept in the low dtype",
            )


#: Float32 statistics of 200 numbers and three updates: measured 0.5 to 3 (CPU, torch 2.13).
FEW = 16


def test_evaluation_leaves_the_statistics_alone(amp: SuiteAmp) -> None:
    layer = nn.BatchNorm2d(CHANNELS).to(amp.device.torch_device)
    (batch,) = inputs("BatchNorm2d", 1)
    with amp.autocast():
        layer(batch.to(amp.device.torch_device))
    layer.eval()
    before = {name: value.clone() for name, value in layer.named_buffers()}
    with amp.autocast():
        layer(batch.to(amp.device.torch_device, amp.dtype))
    for name, value in layer.named_buffers():
        assert torch.equal(value, before[name]), f"{name} changed in evaluation mode"


@pytest.mark.amp(dtypes=["fp16"])
def test_statistics_survive_an_overflow(amp: SuiteAmp) -> None:
    """GradScaler skips the step of an overflow, but running statistics keep the change of its forward pass."""
    device = amp.device.torch_device
    linear, norm = nn.Linear(10, 10).to(device), nn.BatchNorm1d(10).to(device)
    nn.init.ones_(linear.weight)
    with amp.autocast():
        norm(linear(torch.full((4, 10), 1e4, device=device)))
    assert bool(norm.running_mean.isfinite().all()) if norm.running_mean is not None else False
