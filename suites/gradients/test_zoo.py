"""Every kind of network keeps its outputs, its gradients and its statistics in mixed precision."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Attention, Case, cnn, decoder, lacks_lstm_kernel, lstm, mlp, zoo
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import predict
from pytest_amp.precision import BF16
from pytest_amp.run.targets import Target

from .expectations import module_dtypes


def cases(target: Target) -> Iterator[object]:
    """Yield the zoo and the cases of projects."""
    for case in zoo():
        yield pytest.param(case, id=case.name)
    for case in target.added_cases():
        yield pytest.param(case, id=case.name)


def smooth(target: Target) -> Iterator[object]:
    """Yield the zoo without discontinuities and without cases that this machine cannot run."""
    for case in (mlp(), cnn(), decoder(), decoder(attention=Attention.SOFTMAX), decoder(tied=True), lstm()):
        if case.name != "lstm" or not lacks_lstm_kernel(target.device.type, target.precision.name):
            yield pytest.param(case, id=case.name)


@pytest.mark.amp_parametrize("case", cases)
def test_step(amp: SuiteAmp, case: Case) -> None:
    amp.check_gradients(case)


@pytest.mark.amp_parametrize("case", smooth)
def test_module_dtypes(amp: SuiteAmp, case: Case) -> None:
    amp.check_dtypes(case, module_dtypes(case, amp.device.type, amp.dtype))


#: The noise of manual casts, in units of u. Measured on the CPU (torch 2.13, 8 seeds, tensors of 64 elements or
#: more): median of a case 0.75 to 1.93, worst tensor 3.9. The cells of a recurrent layer on an accelerator make up to
#: 10 roundings (H200, torch 2.11).
MEDIAN_NOISE = 2.5
WORST_NOISE = 6.0
WORST_NOISE_OF_CELLS = 15.0
#: BatchNorm's backward in bf16 on CUDA makes an additional error of the size of bf16's rounding, 4.5 to 7.6 u in
#: all; fp16 has 2.1 to 3.3 u (H100, torch 2.11, 4 seeds).
WORST_NOISE_OF_BATCH_NORM = 12.0


@pytest.mark.amp_parametrize("case", smooth)
def test_noise_is_the_formats(amp: SuiteAmp, case: Case) -> None:
    """The noise behind the tolerance is itself no more than a few roundings: kernels have not become less precise."""
    prediction = predict(case, case.realise(seed=amp.config.seed), amp.device, amp.precision, seed=amp.config.seed)
    exact = prediction.exact.named()
    noise = {name: value / amp.precision.u for name, value in prediction.noise.items() if exact[name].numel() >= 64}
    median, worst = statistics.median(noise.values()), max(noise, key=lambda name: noise[name])
    most = _worst_noise(amp, case)
    amp.observe(f"{case.name}/noise.median", median, kind="ratio", unit="u", allowed=MEDIAN_NOISE)
    amp.observe(f"{case.name}/noise.worst", noise[worst], kind="ratio", unit="u", allowed=most)
    if median > MEDIAN_NOISE * amp.config.tolerance_scale or noise[worst] > most * amp.config.tolerance_scale:
        raise AmpFailure(
            f"{case.name}: manual casts differ from float64 by {median:.3g} u in the median and {noise[worst]:.3g} u "
            f"on {worst}, in {amp.precision.name} on {amp.device.key}",
            label_before="measured",
            before=f"at most {MEDIAN_NOISE} and {most} u on healthy kernels",
            now=f"torch {torch.__version__}, {amp.device.describe()}",
            likely="a kernel accumulates in the low dtype, or backward rounds where it did not",
        )


def _worst_noise(amp: SuiteAmp, case: Case) -> float:
    if case.name == "lstm" and amp.device.type != "cpu":
        return WORST_NOISE_OF_CELLS
    if case.name == "cnn" and amp.device.type == "cuda" and amp.precision == BF16:
        return WORST_NOISE_OF_BATCH_NORM
    return WORST_NOISE


@pytest.mark.amp_long
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.amp_parametrize("case", smooth)
def test_step_for_other_numbers(amp: SuiteAmp, case: Case, seed: int) -> None:
    def build() -> torch.nn.Module:
        torch.manual_seed(amp.config.seed + seed)
        return case.build()

    def batch() -> object:
        torch.manual_seed(amp.config.seed + seed)
        return case.batch()

    amp.check_gradients(Case(f"{case.name}_{seed}", build, batch, case.loss))
