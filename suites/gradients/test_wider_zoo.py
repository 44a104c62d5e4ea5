"""Networks, losses and training procedures of users keep outputs, gradients and statistics in mixed precision."""

from __future__ import annotations

import statistics
from functools import partial

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, adds_up_low_convolutions, wider_zoo, zoo
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import predict, relative_error, run_step
from pytest_amp.precision import BF16, FP16

CASES = {case.name: case for case in wider_zoo()}


# See test_operators.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", CASES)
def test_step(amp: SuiteAmp, name: str) -> None:
    amp.check_gradients(CASES[name])


#: bf16 has 3 bits less than fp16, so that one rounding is 8 times as large. A ratio of errors between half and twice
#: of 8 is explained by the formats; any other means that the programs differ.
FACTOR = 2.0

#: The cases without discontinuities that every CPU runs in both formats.
SMOOTH = [case for case in zoo() if case.name not in ("cnn_relu", "lstm")]


@pytest.mark.amp(dtypes=["bf16"])
@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_the_two_formats_differ_by_their_bits(amp: SuiteAmp, case: Case) -> None:
    """The predicted noise of a tensor in bf16 is 4 to 16 times that in fp16, in the median over a case."""
    if case.name == "cnn":
        _skip_unless_alike(amp)
    realised = case.realise(seed=amp.config.seed)
    noise = {
        precision.name: predict(case, realised, amp.device, precision, seed=amp.config.seed)
        for precision in (BF16, FP16)
    }
    exact = noise["bf16"].exact.named()
    ratios = [
        value / noise["fp16"].noise[name]
        for name, value in noise["bf16"].noise.items()
        if exact[name].numel() >= 64 and noise["fp16"].noise[name]
    ]
    ratio = statistics.median(ratios)
    _expect_ratio(
        amp,
        f"{case.name}/bf16_over_fp16",
        ratio,
        unit="noise",
        likely="only one of the two rounds, or overflows, in some operator",
    )


def _expect_ratio(amp: SuiteAmp, name: str, ratio: float, *, unit: str, likely: str) -> None:
    """Check that bf16 over fp16 is within ``FACTOR`` of the ratio of their roundings."""
    expected = 2.0 ** (FP16.mantissa_bits - BF16.mantissa_bits)
    amp.observe(name, ratio, kind="ratio", unit=unit, allowed=expected * FACTOR)
    if not expected / FACTOR <= ratio <= expected * FACTOR:
        raise AmpFailure(
            f"{name.partition('/')[0]}: bf16 has {ratio:.3g} times the error of fp16",
            label_before="bits",
            before=f"{expected / FACTOR:g} to {expected * FACTOR:g}: fp16 has 3 bits more",
            now=amp.conditions.now(f"{ratio:.3g}"),
            likely=likely,
        )


#: Convolutions, which some CPUs accumulate in the low dtype.
CONVOLUTIONAL = ("residual", "unet", "patches")


def _skip_unless_alike(amp: SuiteAmp) -> None:
    """Skip convolutions unless both formats accumulate in float32: their errors are not comparable otherwise."""
    for precision in (BF16, FP16):
        if adds_up_low_convolutions(amp.device.type, precision.name):
            pytest.skip(f"{precision.name} convolutions accumulate in {precision.name} on this machine")


@pytest.mark.amp(dtypes=["bf16"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", CASES)
def test_real_errors_differ_by_their_bits(amp: SuiteAmp, name: str) -> None:
    """Errors of a step against float64 are 4 to 16 times as large in bf16 as in fp16, in the median over tensors."""
    case, seed, device = CASES[name], amp.config.seed, amp.device
    if name in CONVOLUTIONAL:
        _skip_unless_alike(amp)
    realised = case.realise(seed=seed)
    errors: dict[str, dict[str, float]] = {}
    for precision in (BF16, FP16):
        prediction = predict(case, realised, device, precision, seed=seed)
        exact, sizes = prediction.exact.named(), prediction.sizes
        step = run_step(
            case,
            realised.on(device.torch_device),
            partial(device.autocast, precision.dtype),
            seed=seed,
            loss_scale=prediction.loss_scale,
        )
        errors[precision.name] = {
            key: relative_error(value, exact[key], scale=sizes[key])
            for key, value in step.named().items()
            if value.is_floating_point() and value.numel() >= 16
        }
    ratio = statistics.median(
        errors["bf16"][key] / error for key, error in errors["fp16"].items() if error and key in errors["bf16"]
    )
    _expect_ratio(
        amp,
        f"{name}/real_bf16_over_fp16",
        ratio,
        unit="error",
        likely="an operator rounds in only one of the two",
    )
