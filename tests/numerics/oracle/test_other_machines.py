"""Kernels and models of less capable CPUs, which environment variables of torch and oneDNN simulate."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TAILS = """
from tests.numerics.oracle.test_vector_remainders import CALLS, shares
print(min(min(shares(name, dtype)) for name in CALLS for dtype in (torch.bfloat16, torch.float16)))
"""
#: The logarithm of attention's sums, which shows how exponentials are computed: the worst error, and float32's bound.
ATTENTION = """
from pytest_amp.numerics.oracle.observer import Observer
worst = 0.0
for tokens in (13, 40, 64):
    observer = Observer("cpu", torch.float16)
    x = torch.randn(2, 2, tokens, 16, generator=torch.Generator().manual_seed(0)).half()
    with observer.on({}):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    (call,) = [each for each in observer.observed_calls if "flash" in each.operator]
    sums = call.results[1]
    worst = max(worst, sums.error - sums.ideal, 1.0 - sums.equal / sums.elements)
print(worst)
"""
CONVOLUTIONS = """
from pytest_amp import torch_private
from pytest_amp.cases import adds_up_low_convolutions
from pytest_amp.numerics.oracle.models import model_of
for dtype in ("bf16", "fp16"):
    lacks = not torch_private.cpu_has_onednn_kernels(dtype)
    assert bool(adds_up_low_convolutions("cpu", dtype)) is lacks
    assert (model_of("aten::convolution", "cpu", dtype).name.value == "unmodelled") is (lacks or dtype == "fp16")
    assert adds_up_low_convolutions("cuda", dtype) is None
print(model_of("aten::convolution", "cpu", "bf16").name.value)
"""


def output_of(code: str, *, torch: str | None = None, onednn: str | None = None) -> str:
    """Return the last word that ``code`` prints in a process in which torch and oneDNN use no more than these."""
    limits = {"ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": onednn}
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + code],
        env={**os.environ, **{name: value for name, value in limits.items() if value}},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


_HEAD = "import torch; torch.set_num_threads(1)\n"


@pytest.mark.parametrize("capability", ["default", "avx2", None])
def test_vector_remainders_are_predicted_on_less_capable_cpus(capability: str | None) -> None:
    assert output_of(TAILS, torch=capability) == "1.0"


@pytest.mark.parametrize("capability", ["default", "avx2", None])
def test_attention_exponentials_are_predicted_on_less_capable_cpus(capability: str | None) -> None:
    """Exponentials come in eights with AVX2, in sixteens with AVX512, else singly: the last of a row are exact."""
    assert float(output_of(ATTENTION, torch=capability)) < 1e-6


@pytest.mark.parametrize("onednn", ["AVX2", None])
def test_convolutions_without_onednn_kernels_accumulate_low(onednn: str | None) -> None:
    model = output_of(CONVOLUTIONS, torch="avx2" if onednn else None, onednn=onednn)
    assert model == "unmodelled" if onednn else model in {"once", "unmodelled"}
