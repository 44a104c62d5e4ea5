"""GPU only: a sample after which the device no longer answers is the only loss."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.fingerprint.sweep import FingerprintSweep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device that can be poisoned")


@pytest.fixture(scope="module")
def sweep() -> Iterator[FingerprintSweep]:
    result = FingerprintSweep(modules=["tests.fingerprint.planted_entries"], path=sys.path)
    yield result
    result.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["planted_asserts", "planted_illegal_address"])
def test_poisoned_device_loses_one_sample(sweep: FingerprintSweep, name: str, dtype: str) -> None:
    """Observe the samples and entries before and after it, in a new process."""
    cuda = find_device("cuda")
    assert sweep.fingerprint("addmm", cuda, dtype) == "fp32 low | low low"
    del sweep.losses[:]
    assert sweep.fingerprint(name, cuda, dtype) == "fp32 low | = x1; fp32 low | low low x1; lost x1"
    (loss,) = sweep.losses
    assert loss.startswith(f"{name} on cuda in {dtype}, sample 1: it poisoned the device: "), loss
    assert "CUDA error" in loss
    assert sweep.fingerprint("addmm", cuda, dtype) == "fp32 low | low low"
    assert torch.ones(2, device="cuda").sum().item() == 2, "the parent's own context is poisoned"
