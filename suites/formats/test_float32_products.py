"""TF32: its effect on float32 products, through every switch; a CPU never has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.formats import FP32, TF32, product_of, visible_bits
from pytest_amp.precision.float32 import float32_precision, has_fp32_precision
from pytest_amp.run.state_guard import StateGuard

ON_CUDA = pytest.mark.amp(devices=["cuda"], dtypes=["tf32"])
ON_CPU = pytest.mark.amp(devices=["cpu"], dtypes=["fp32"])

_ROWS, _LENGTH = 128, 512


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def _linear(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return f.linear(a, b.t().contiguous())


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a.expand(2, -1, -1), b.expand(2, -1, -1))[1]


def _addmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addmm(torch.zeros(b.shape[1], device=b.device), a, b)


def _einsum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ik,kj->ij", a, b)


_PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": _matmul,
    "linear": _linear,
    "bmm": _bmm,
    "addmm": _addmm,
    "einsum": _einsum,
}


def _error(amp: SuiteAmp, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
    """Return the relative L2 distance of a float32 product from that in float64."""
    torch.manual_seed(amp.config.seed)
    a, b = torch.randn(_ROWS, _LENGTH), torch.randn(_LENGTH, _ROWS)
    exact = a.double() @ b.double()
    actual = product(a.to(amp.device.torch_device), b.to(amp.device.torch_device)).double().cpu()
    return float((actual - exact).norm() / exact.norm())


@dataclass(frozen=True)
class _Switch:
    """One way to choose the precision of float32 products; the newer ones exist from torch 2.9 on."""

    write: Callable[[str], None]
    read: Callable[[], str]
    newer: bool = False


def _matmul_settings() -> Any:
    return torch.backends.cuda.matmul


def _write_allow_tf32(kind: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"


def _write_high(kind: str) -> None:
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")


def _write_medium(kind: str) -> None:
    torch.set_float32_matmul_precision("medium" if kind == "tf32" else "highest")


def _write_newer(kind: str) -> None:
    _matmul_settings().fp32_precision = kind


def _write_root(kind: str) -> None:
    backends: Any = torch.backends
    # A setting for products alone takes precedence; "none" removes it.
    _matmul_settings().fp32_precision = "none"
    backends.fp32_precision = kind


def _older() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


_SWITCHES = {
    "cuda.matmul.allow_tf32": _Switch(_write_allow_tf32, _older),
    "set_float32_matmul_precision(high)": _Switch(_write_high, _older),
    "set_float32_matmul_precision(medium)": _Switch(_write_medium, _older),
    "cuda.matmul.fp32_precision": _Switch(_write_newer, lambda: str(_matmul_settings().fp32_precision), newer=True),
    "backends.fp32_precision": _Switch(_write_root, lambda: str(_matmul_settings().fp32_precision), newer=True),
}


@contextlib.contextmanager
def _switched(switch: _Switch) -> Iterator[Callable[[str], None]]:
    """Set the switch; afterwards restore all settings, those that it changes as well (oneDNN's) among them."""
    if switch.newer and not has_fp32_precision():
        pytest.skip(f"torch {torch.__version__} has no fp32_precision")
    guard = StateGuard()
    try:
        yield switch.write
    finally:
        guard.restore()


#: With ``medium`` oneDNN may compute in bf16 where the CPU has such products: a separate question from TF32.
_FOR_CPU = [name for name in _SWITCHES if "medium" not in name]


@ON_CPU
@pytest.mark.parametrize("product", _PRODUCTS)
@pytest.mark.parametrize("switch", _FOR_CPU)
def test_a_cpu_has_no_tf32(amp: SuiteAmp, product: str, switch: str) -> None:
    """Whatever CUDA's switches say, a CPU's results keep the same bits, and those of float32."""
    with _switched(_SWITCHES[switch]) as write:
        errors = []
        for kind in ("ieee", "tf32"):
            write(kind)
            errors.append(_error(amp, _PRODUCTS[product]))
    if errors[0] != errors[1] or errors[0] > 64 * FP32.u:
        raise AmpFailure(
            f"a float32 {product} on the CPU is not float32's",
            label_before="rule",
            before=f"an error below {64 * FP32.u:.3g}, with the switch on and off",
            now=f"{errors[0]:.3g} with it off, {errors[1]:.3g} with {switch} on",
            likely="products round their inputs to TF32 or bf16: a switch of another back end, or oneDNN's, is obeyed",
        )


@ON_CPU
def test_a_cpu_product_sees_every_bit(amp: SuiteAmp) -> None:
    assert visible_bits(amp.device.torch_device, torch.float32) == FP32.mantissa_bits


@pytest.mark.amp(dtypes=["fp32"])
def test_the_defaults(amp: SuiteAmp) -> None:
    """Defaults are IEEE for products, TF32 for cuDNN's convolutions (pytorch/pytorch#67384): TF32 was not left on."""
    actual = _older(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if actual != ("ieee", "highest", True):
        raise AmpFailure(
            "float32 products are not computed as torch computes them by default",
            label_before="rule",
            before="cuda.matmul IEEE, highest, cudnn.allow_tf32 True",
            now=f"cuda.matmul {actual[0]}, {actual[1]}, cudnn.allow_tf32 {actual[2]}",
            likely="a default of torch has changed, or a plugin, a conftest or a test has left TF32 on",
        )
    assert _error(amp, _matmul) < 64 * FP32.u


@pytest.mark.amp(dtypes=["fp32"])
@pytest.mark.parametrize("older", [name for name, switch in _SWITCHES.items() if not switch.newer])
def test_the_older_switch_moves_the_newer_one(amp: SuiteAmp, older: str) -> None:
    """The switch that was written last decides, and the newer one reports the setting (pytorch/pytorch#67384)."""
    with _switched(_SWITCHES["cuda.matmul.fp32_precision"]) as write:
        for first, last in (("ieee", "tf32"), ("tf32", "ieee")):
            write(first)
            assert _matmul_settings().fp32_precision == first
            _SWITCHES[older].write(last)
            assert _matmul_settings().fp32_precision == last
    amp.observe(f"{older}/moves fp32_precision", value=True, kind="state")


@ON_CUDA
@pytest.mark.parametrize("product", _PRODUCTS)
@pytest.mark.parametrize("switch", _SWITCHES)
def test_the_switch_changes_the_error(amp: SuiteAmp, product: str, switch: str) -> None:
    """The error is float32's rounding while off, that of ten-bit mantissas while on, and float32's again."""
    with _switched(_SWITCHES[switch]) as write:
        actual = {}
        for number, kind in enumerate(("ieee", "tf32", "ieee")):
            write(kind)
            assert _SWITCHES[switch].read() == kind
            actual[f"{number} {kind}"] = _error(amp, _PRODUCTS[product])
    amp.observe(f"{switch}/{product}", actual["1 tf32"], kind="error", unit="relative L2", allowed=TF32.eps)
    off = max(actual["0 ieee"], actual["2 ieee"])
    if not (off < 64 * FP32.u and TF32.u / 8 < actual["1 tf32"] < TF32.eps):
        raise AmpFailure(
            f"{switch} does not decide how a float32 {product} is computed",
            label_before="rule",
            before=f"below {64 * FP32.u:.3g} with it off, {TF32.u / 8:.3g} to {TF32.eps:.3g} with it on",
            now=", ".join(f"{kind[2:]}: {error:.3g}" for kind, error in actual.items()),
            likely="TF32 was left on, or torch ignores the switch",
        )


@ON_CUDA
def test_tf32_is_ten_bits_with_the_range_of_float32(amp: SuiteAmp) -> None:
    """Measure the hardware: the last bit of the inputs that affects a product, and the ends of the range."""
    device = amp.device.torch_device
    with float32_precision("tf32"):
        bits = visible_bits(device, torch.float32)
        ends = product_of([2.0**127, -(2.0**127), TF32.smallest_normal], device, torch.float32)
        largest = product_of([TF32.max], device, torch.float32)
    with float32_precision("ieee"):
        wide = visible_bits(device, torch.float32)
    amp.observe("tf32/bits that a product sees", bits, kind="count", unit="bits")
    assert (bits, wide) == (TF32.mantissa_bits, FP32.mantissa_bits)
    assert ends == [2.0**127, -(2.0**127), TF32.smallest_normal]
    assert largest == [TF32.max]


@ON_CUDA
def test_how_tf32_rounds(amp: SuiteAmp) -> None:
    """Rounding is to one of the two neighbours; record which: to the nearest even on an H200 (docs/lab/formats.md)."""
    step = TF32.eps
    inputs = [1 + step / 4, 1 + step / 2, 1 + 3 * step / 4, 1 + 3 * step / 2, -1 - step / 2, -1 - 3 * step / 4]
    with float32_precision("tf32"):
        actual = product_of(inputs, amp.device.torch_device, torch.float32)
    for value, result in zip(inputs, actual, strict=True):
        lower = torch.tensor(value / step).trunc().item() * step
        assert abs(result - lower) in {0.0, step}, f"{value!r} became {result!r}"
    amp.observe(
        "tf32/rounding", [f"{value}: {result}" for value, result in zip(inputs, actual, strict=True)], kind="state"
    )


@ON_CUDA
def test_low_products_do_not_ask_for_tf32(amp: SuiteAmp) -> None:
    """The switches change no bit under autocast."""
    torch.manual_seed(amp.config.seed)
    a, b = (torch.randn(_ROWS, _ROWS, device=amp.device.torch_device) for _ in range(2))
    for dtype in (torch.bfloat16, torch.float16):
        results = []
        for kind in ("ieee", "tf32"):
            with float32_precision(kind), torch.autocast("cuda", dtype):
                results.append(a @ b)
        assert torch.equal(*results)
