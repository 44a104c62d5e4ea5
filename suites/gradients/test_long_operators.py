"""Each operator on low-precision values, with a rule or without: its error is its rounding, at every length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from pytest_amp.amp import Amp
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import MeasuredOperator, check_operator, confirmed_operator, measure_operator, relative_error
from pytest_amp.run.targets import Target

from .long_operators import ELEMENTWISE, LOSSES, PRODUCTS, REDUCTIONS

SHORT, LONG, LONGEST = 256, 16384, 262144


def measured(amp: Amp, name: str, function: Callable[..., Tensor], *tensors: Tensor) -> MeasuredOperator:
    return measure_operator(name, function, tensors, amp.conditions)


def hold(amp: Amp, name: str, sizes: dict[str, MeasuredOperator]) -> None:
    check_operator(name, sizes, amp.conditions, amp.observe)


def reduction(amp: Amp, name: str, length: int) -> MeasuredOperator:
    long = REDUCTIONS[name]

    def draw() -> MeasuredOperator:
        low = [(torch.randn(shape) * long.spread).to(amp.dtype) for shape in long.low(length)]
        return measured(amp, name, long.function, *low, *(torch.randn(shape) for shape in long.wide(length)))

    return confirmed_operator(draw, seed=amp.config.seed)


#: Known errors of CUDA by name, and their workarounds.
ROUNDED_ON_CUDA = (
    "cross_entropy asks log_softmax for the low dtype, which fp32_set_opt_dtype respects (no report found): "
    "F.nll_loss(F.log_softmax(x, -1), t), or cross_entropy of .float() logits, is float32"
)
ON_CUDA = dict.fromkeys(("cross_entropy", "cross_entropy_ignoring", "cross_entropy_of_images"), ROUNDED_ON_CUDA)


LACKING_BEFORE_2_9 = "logcumsumexp"
LACKS = "logcumsumexp_backward is not implemented for Half on a CPU before torch 2.9"


#: Before torch 2.13 (2.12 was not tried) backward uses a formula of quadratic cost under a dispatch mode, as the
#: oracle is one: 16384 values take minutes. The formula is made of prod, which a CPU multiplies in the low dtype.
QUADRATIC = "cumprod"
_BEFORE_2_13 = holds_in(release_of(torch.__version__), since=None, until="2.12")


def lacks(name: str, target: Target) -> bool:
    old = holds_in(release_of(torch.__version__), since=None, until="2.8")
    return old and name == LACKING_BEFORE_2_9 and target.id == "cpu-fp16"


def known(names: Iterable[str]) -> Callable[[Target], Iterator[object]]:
    """Return ``names``, expected to fail where their device has a known error."""

    def cases(target: Target) -> Iterator[object]:
        for name in names:
            if name == QUADRATIC and _BEFORE_2_13:
                continue
            reason = ON_CUDA.get(name) if target.device.type == "cuda" else None
            marks = [pytest.mark.xfail(reason=reason, raises=AmpFailure, strict=True)] if reason else []
            if lacks(name, target):
                marks = [pytest.mark.xfail(reason=LACKS, raises=AmpFailure, strict=True)]
            yield pytest.param(name, id=name, marks=marks)

    return cases


# rms_norm of low-precision values with a float32 weight is not fused: pytorch/pytorch#167308, before 2.12 and on CPUs.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.amp_parametrize("name", known(REDUCTIONS))
def test_sums_do_not_lose_with_length(amp: Amp, name: str) -> None:
    """Sums over 256 and over 16384 values keep their precision, forward and backward."""
    hold(amp, name, {str(length): reduction(amp, name, length) for length in (SHORT, LONG)})


#: An image of 256 pixels leaves 16 of float32's bits to the place between two of them; the statistics of 262144 rows,
#: added one after the other, are off by the square root of as many float32 roundings (measured on a CPU: 2.7e-5).
WITHOUT_GREAT_LENGTH = ("grid_sample", "batch_norm", *([QUADRATIC] if _BEFORE_2_13 else []))
TOO_WIDE = (
    "the number of elements of a window, 131072, is inf in fp16, and the gradient zero (no report found): "
    "average in float32, or with mean()"
)


def great(target: Target) -> Iterator[object]:
    """Yield the reductions of great length; a window is wider than fp16's largest value."""
    for name in REDUCTIONS:
        reason = ON_CUDA.get(name) if target.device.type == "cuda" else None
        if name == "avg_pool1d" and target.id == "cpu-fp16":
            reason = TOO_WIDE
        if lacks(name, target):
            reason = LACKS
        marks = [pytest.mark.xfail(reason=reason, raises=AmpFailure, strict=True)] if reason else []
        if name not in WITHOUT_GREAT_LENGTH:
            yield pytest.param(name, id=name, marks=marks)


# Run on a CPU (torch 2.13); not on CUDA yet.
@pytest.mark.amp_long
@pytest.mark.amp(devices=["cpu"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.amp_parametrize("name", great)
def test_sums_do_not_lose_with_great_length(amp: Amp, name: str) -> None:
    hold(amp, name, {str(LONGEST): reduction(amp, name, LONGEST)})


# On CUDA, which multiplies in float32, backward is a scan with an order of its own.
@pytest.mark.amp(devices=["cpu"])
@pytest.mark.parametrize("name", [name for name in PRODUCTS if not (name.startswith("running") and _BEFORE_2_13)])
def test_products_outside_of_a_region_round_as_their_model(amp: Amp, name: str) -> None:
    """Each factor of a low-precision product rounds it, in the order in which the kernel takes them."""

    def alone(x: Tensor) -> Tensor:
        with amp.autocast(enabled=False):
            return PRODUCTS[name](x / 32 + 1)

    def draw(length: int) -> MeasuredOperator:
        low = torch.randn(4, length).to(amp.dtype)
        return measure_operator(f"product {name}", alone, (low,), amp.conditions, has_regions=True)

    seed = amp.config.seed
    sizes = {str(length): confirmed_operator(partial(draw, length), seed=seed) for length in (SHORT, 600)}
    hold(amp, f"product.{name}", sizes)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions_round_as_their_model(amp: Amp, name: str) -> None:
    def draw() -> MeasuredOperator:
        return measured(amp, name, ELEMENTWISE[name], torch.randn(64, 64).to(amp.dtype))

    hold(amp, name, {"4096": confirmed_operator(draw, seed=amp.config.seed)})


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # kl_div's advice to its users
@pytest.mark.amp_parametrize("name", known(LOSSES))
def test_losses_and_their_gradients(amp: Amp, name: str) -> None:
    """Losses with each reduction are float32 where the device has the rule, in values as in name."""
    logits, targets = torch.randn(1024, 24).to(amp.dtype), torch.randn(1024, 24)
    hold(
        amp,
        f"loss.{name}",
        {
            reduction: measured(amp, name, lambda x, y, r=reduction: LOSSES[name](x, y, r), logits, targets)
            for reduction in ("mean", "sum", "none")
        },
    )


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_reduced_losses_are_not_rounded(amp: Amp, name: str) -> None:
    """Single losses are low-precision values by chance once in some thousand cases; two of them, in millions."""
    device = amp.device.torch_device
    logits, targets = torch.randn(1024, 24).to(device, amp.dtype), torch.randn(1024, 24).to(device)
    reduced = []
    for reduction in ("mean", "sum"):
        with amp.autocast():
            reduced.append(LOSSES[name](logits, targets, reduction))
    assert all(value.dtype == torch.float32 for value in reduced), f"{name} is {reduced[0].dtype}"
    for dtype in (torch.bfloat16, torch.float16):
        narrow = [bool(value == value.to(dtype).to(value.dtype)) for value in reduced]
        assert not all(narrow), f"{name}: mean and sum are both values that {dtype} has"


#: Of products of float32 values: three roundings of about 0.41 u, of both arguments and of the result, make 0.71 u.
LEAST, MOST = 0.6, 0.95


@pytest.mark.parametrize("length", [64, 1024, 16384])
@pytest.mark.parametrize("name", ["mm", "linear", "bmm", "matmul"])
def test_the_law_of_products(amp: Amp, name: str, length: int) -> None:
    """The error of a product of float32 values is 0.6 to 0.95 u, however long its sums are."""
    a, b = torch.randn(32, length) / 8, torch.randn(length, 32) / 8
    product: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "mm": torch.mm,
        "linear": lambda x, y: torch.nn.functional.linear(x, y.t()),
        "bmm": lambda x, y: torch.bmm(x[None], y[None])[0],
        "matmul": lambda x, y: torch.matmul(x[:, None], y)[:, 0],
    }
    with amp.autocast():
        result = product[name](a.to(amp.device.torch_device), b.to(amp.device.torch_device))
    error = relative_error(result, a.double() @ b.double()) / amp.precision.u
    amp.observe(f"law/{name}/{length}", error, kind="ratio", unit="u", allowed=MOST)
    if not LEAST / amp.config.tolerance_scale < error < MOST * amp.config.tolerance_scale:
        raise AmpFailure(
            f"{name} over {length} terms is off by {error:.3g} u under {amp.conditions}",
            label_before="law",
            before=f"{LEAST} to {MOST} u: each argument and the result rounded once",
            now=f"torch {torch.__version__}, {amp.device.describe()}",
            likely="it is not cast" if error < LEAST else "its sums are rounded on their way",
        )
