"""binary_cross_entropy, which overflows on the output of a low-precision sigmoid, is refused or runs in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name


def _arguments(amp: SuiteAmp, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    probability = torch.full((4,), 0.3, dtype=dtype, device=amp.device.torch_device)
    return probability, probability.clone()


@pytest.mark.amp(fake=True, devices=["cuda", "xpu", "mtia"])
def test_it_is_refused_with_the_name_of_the_alternative(amp: SuiteAmp) -> None:
    for dtype in (torch.float32, amp.dtype):
        with amp.device.tensors(), amp.device.autocast(amp.dtype):
            arguments = _arguments(amp, dtype)
            try:
                functional.binary_cross_entropy(*arguments)
            except RuntimeError as error:
                if "binary_cross_entropy_with_logits" in str(error):
                    continue
                raise AmpFailure(f"the refusal of binary_cross_entropy names no alternative: {error}") from None
        raise AmpFailure(
            f"binary_cross_entropy runs under autocast({amp.device.type}) with {dtype} arguments",
            label_before="rule",
            before="banned: a RuntimeError that names binary_cross_entropy_with_logits",
            likely="log of a rounded 0 or 1: losses become inf",
        )
    amp.observe("binary_cross_entropy refused", value=True, kind="state")


@pytest.mark.amp(devices=["cpu"])
def test_it_runs_in_float32_on_the_cpu(amp: SuiteAmp) -> None:
    with amp.autocast():
        low = functional.binary_cross_entropy(*_arguments(amp, amp.dtype))
        full = functional.binary_cross_entropy(*_arguments(amp, torch.float32))
    amp.observe("binary_cross_entropy", dtype_name(low.dtype), kind="dtype")
    assert (low.dtype, full.dtype) == (torch.float32, torch.float32)


@pytest.mark.amp(fake=True)
def test_the_alternative_runs_in_float32(amp: SuiteAmp) -> None:
    with amp.device.tensors(), amp.device.autocast(amp.dtype):
        logits = torch.full((4,), 0.3, dtype=amp.dtype, device=amp.device.torch_device)
        loss = functional.binary_cross_entropy_with_logits(logits, logits.clone())
    amp.observe("binary_cross_entropy_with_logits", dtype_name(loss.dtype), kind="dtype")
    assert loss.dtype == torch.float32
