"""Checks against the oracle: silent on healthy kernels, and on broken ones a failure that names the operator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases import Case, decoder, mlp
from pytest_amp.devices import Device, find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, oracle, predicted, tolerance
from pytest_amp.numerics import manual_cast_comparison as manual_casts
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.numerics.oracle import formulas
from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.operation import Operation
from pytest_amp.numerics.prediction import predict
from pytest_amp.numerics.realised import realise
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.planted import broken, kernel
from tests.observing import Noted

CPU = find_device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def run(
    case: Case, precision: Precision = BF16, *, scale: float = 1.0, seed: int = 0, device: Device = CPU
) -> dict[str, float]:
    observed = Noted()
    check_gradients(case, Conditions(device, precision, seed, scale), observed.observe)
    return observed


def low(*tensors: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16) for x in tensors)


def twice(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Round each half of the sum, and then the whole."""
    a, b = args
    if not low(a):
        return original(a, b, **kwargs)
    half = a.shape[1] // 2
    return original(a[:, :half].contiguous(), b[:half].contiguous()) + original(
        a[:, half:].contiguous(), b[half:].contiguous()
    )


def coarse_sum(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, dim, *rest = args
    if not low(x) or x.dim() != 2 or dim != [0]:
        return original(*args, **kwargs)
    total = original(x[:4], dim, *rest, **kwargs)
    for part in x[4:].split(4):
        total = total + original(part, dim, *rest, **kwargs)
    return total


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_rounded_partial_sums_in_a_kernel_name_the_operator(precision: Precision) -> None:
    """Manual casts use the same kernels: only the float64 values show it."""
    with kernel("mm", twice), pytest.raises(AmpFailure, match=r"mm \(of linear\) in \d, backward"):
        run(mlp(), precision)
    with kernel("sum.dim_IntList", coarse_sum), pytest.raises(AmpFailure, match=r"sum.dim_IntList \(of linear\) in \d"):
        run(mlp(), precision)


def test_healthy_decoder_passes_with_several_seeds() -> None:
    assert tolerance.EXCESS < tolerance.CERTAIN
    for seed in range(3):
        run(decoder(), FP16, seed=seed)


def hollow(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = original(*args, **kwargs)
    return result.to(torch.bfloat16).to(result.dtype) if result.dtype == torch.float32 else result


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_long_sum_of_equal_terms_passes(precision: Precision) -> None:
    """A smoothed loss over a vocabulary adds 32000 equal gradients, each with a float32 rounding."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        targets = torch.arange(x.shape[0], device=x.device)
        return f.cross_entropy(model(x) * 10, targets, label_smoothing=0.1)

    case = Case("vocabulary", lambda: nn.Linear(16, 32000), lambda: torch.randn(2, 16), loss)
    assert run(case, precision=precision)["vocabulary/summary.agreement"] > 0.99


def test_vanishing_mean_of_a_norm_passes() -> None:
    """The mean of a normalised tensor, as in nn.Transformer, is the float32 rounding of zero."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        result = model(x)
        return (result.float() * torch.linspace(-1, 1, result.numel()).view_as(result)).square().mean()  # type: ignore[no-any-return]

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(16, 32), nn.LayerNorm(32), nn.LayerNorm(32), nn.GroupNorm(4, 32), nn.GroupNorm(4, 32)
        )

    assert run(Case("norms", build, lambda: torch.randn(24, 16), loss))["norms/summary.equal"] == 1.0


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_gradients_of_cancelling_terms_pass(precision: Precision) -> None:
    """The squares of a norm's result are the same for all parameters: gradients are roundings, of any size."""

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 1, nn.LayerNorm(16))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean()  # type: ignore[no-any-return]

    for seed in range(3):
        run(Case("vanishing", build, lambda: torch.randn(2, 6, 16), loss), precision, seed=seed)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()  # type: ignore[no-any-return]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
    "layer": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
    "group": lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8)),
}


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("name", NORMS)
def test_operator_with_cancelling_terms_passes_with_other_numbers(name: str, precision: Precision) -> None:
    """The gradient of a norm's squares is a float32 rounding of terms that cancel, not a second one in fp16."""
    for seed in range(4):
        run(Case(name, NORMS[name], lambda: torch.randn(16, 8), squares), precision, seed=seed)


def test_kernel_that_rounds_twice_is_red_with_other_numbers() -> None:
    def coarse(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first, *rest = original(*args, **kwargs)
        return ((first * 1.25).to(first.dtype) / 1.25, *rest) if low(first) else (first, *rest)

    case = Case("batch", NORMS["batch"], lambda: torch.randn(16, 8), squares)
    with kernel("native_batch_norm_backward", coarse), pytest.raises(AmpFailure, match="native_batch_norm_backward"):
        run(case, FP16)


def test_model_that_overflows_where_the_kernel_does_not_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new release of torch may bring another kernel, which manual casts run and the formula does not know."""

    def overflowing(operation: Operation) -> list[Any]:
        return [tensor * torch.inf for tensor in operation.once()]

    for model in ModelName:
        monkeypatch.setitem(formulas.BY_MODEL, (model.value, "aten::sigmoid_backward"), overflowing)
    gate = Case("gate", lambda: nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()), lambda: torch.randn(16, 8), squares)
    observed = run(gate, FP16)
    assert observed["gate/0.weight"] > 0


def test_hollow_gradient_is_named() -> None:
    """Plant a rounding in the float32 gradient of a float32 weight: manual casts give the same bits."""

    def rounded(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result.bfloat16().float() if result.dtype == torch.float32 else result

    words = r"the gradient of embedding\.weight .* is float32, but bfloat16 represents all its values"
    with kernel("embedding_dense_backward", rounded), pytest.raises(AmpFailure, match=words):
        run(decoder())


def test_first_layer_without_a_gradient_of_its_input_is_followed() -> None:
    """The backward pass of BatchNorm returns None for an input that is the batch."""

    def build() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 8))

    observed = run(Case("first", build, lambda: torch.randn(32, 16), lambda model, x: model(x).float().square().mean()))
    assert "first/summary.agreement" in observed


def _accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the check treat this CPU as a device with nondeterministic atomics."""
    monkeypatch.setattr(manual_casts, "DeviceKind", SimpleNamespace(CPU=None))


def test_bits_are_compared_on_a_deterministic_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    def approximate(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return original(*args, **{**kwargs, "approximate": "tanh"})

    _accelerator(monkeypatch)
    assert run(mlp())["mlp/summary.equal"] == 1.0
    with pytest.raises(AmpFailure, match="differs from manual casts"):
        run(mlp(), device=broken("gelu", approximate))


def test_bits_that_change_from_run_to_run_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean() * (1 + next(count) * 2.0**-20)  # type: ignore[no-any-return]

    _accelerator(monkeypatch)
    assert run(Case("drifts", lambda: nn.Linear(16, 16), lambda: torch.randn(12, 16), loss))["drifts/summary.equal"] < 1


def test_accelerator_step_that_varies_from_run_to_run_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vary by less than two orders of low-precision sums may, and by far more than orders of float32 sums do."""
    numbers = random.Random(0)  # noqa: S311  # of its own: seeding the step does not reach it

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean() * (1 + 0.004 * numbers.gauss(0, 1))  # type: ignore[no-any-return]

    _accelerator(monkeypatch)
    with pytest.raises(AmpFailure, match="the step computes something else each time under autocast"):
        run(Case("noisy", lambda: nn.Linear(16, 16), lambda: torch.randn(12, 16), loss))


def test_bits_of_nondeterministic_reductions_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits do not count even if they are the same from run to run: ``put_`` has no order of its own.

    An error below a rounding cannot be distinguished from a different order.
    """

    def approximate(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return original(*args, **{**kwargs, "approximate": "tanh"})

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = f.gelu(model(x))
        with torch.no_grad():
            torch.zeros(4).put_(torch.tensor([1, 1]), torch.ones(2))
        return y.float().square().mean()

    def build() -> nn.Module:
        return nn.Linear(16, 16)

    _accelerator(monkeypatch)
    case = Case("any order", build, lambda: torch.randn(12, 16), loss)
    plain = Case("one order", build, lambda: torch.randn(12, 16), lambda m, x: f.gelu(m(x)).float().square().mean())
    with pytest.raises(AmpFailure, match="manual casts"):
        run(plain, device=broken("gelu", approximate))
    assert run(case, device=broken("gelu", approximate))["any order/summary.equal"] < 1


def test_hollow_float32_result_is_named() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return f.mse_loss(model(x), x, reduction="none").mean()

    case = Case("hollow", lambda: nn.Linear(16, 16), lambda: torch.randn(32, 16), loss)
    with (
        kernel("mse_loss", hollow),
        pytest.raises(AmpFailure, match=r"mse_loss .* float32 with values of bfloat16 alone"),
    ):
        run(case)


def test_float32_result_of_low_values_is_named() -> None:
    def inner(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, *rest = args
        coarse = x.to(torch.bfloat16).to(x.dtype) if x.dtype == torch.float32 else x
        return original(coarse, *rest, **kwargs)

    with kernel("_log_softmax", inner), pytest.raises(AmpFailure, match=r"_log_softmax \(of cross_entropy_loss\)"):
        run(Case("loss", lambda: nn.Linear(16, 40), lambda: torch.randn(32, 16), _divided))


def _divided(model: nn.Module, x: Tensor) -> Tensor:
    return f.cross_entropy(model(x).float() / 3, torch.arange(32) % 40)


def test_gradient_with_an_error_of_three_percent_is_red() -> None:
    def scaled(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result * 1.03 if low(result) else result

    with kernel("gelu_backward", scaled), pytest.raises(AmpFailure, match="error of"):
        run(mlp())


def test_wider_tolerance_scale_passes() -> None:
    with kernel("mm", twice):
        run(mlp(), scale=4.0)


def test_bounds_match_their_derivation_in_the_docs() -> None:
    assert pytest.approx(2**0.5 * tolerance.EXCESS) == tolerance.FARTHEST
    assert tolerance.allowed(0.0, 1, 0.004) == pytest.approx(tolerance.EXCESS * 0.002)


def test_trace_has_a_title_and_agrees_with_its_models() -> None:
    for precision in (BF16, FP16):
        result = predicted.trace(mlp(), Conditions(CPU, precision))
        assert result.title == f"mlp under autocast(cpu, {precision.dtype_name})"
        assert min(result.signatures().values()) > 0.98


def test_prediction_takes_a_scale_at_which_its_gradients_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A badly conditioned gradient that float16 just holds in the reference may be beyond it in the prediction."""
    scales: list[float] = []
    run_virtual = oracle.run_virtual

    def overflowing(*args: Any, loss_scale: float = 1.0, **kwargs: Any) -> Any:
        result = run_virtual(*args, loss_scale=loss_scale, **kwargs)
        scales.append(loss_scale)
        if loss_scale > 1024:
            gradients = dict.fromkeys(result.step.gradients, torch.tensor(torch.inf))
            return replace(result, step=replace(result.step, gradients=gradients))
        return result

    conditions = Conditions(CPU, FP16)
    realised = realise(mlp(), conditions)
    plain = predict(mlp(), realised, CPU, FP16, seed=0)
    monkeypatch.setattr(oracle, "run_virtual", overflowing)
    lower = predict(mlp(), realised, CPU, FP16, seed=0)
    assert plain.loss_scale == 65536
    assert scales == [65536, 16384, 4096, 1024]
    assert lower.loss_scale == lower.reference.loss_scale == 1024
    assert lower.whose == "the predicted rounding"
    assert lower.noise == pytest.approx(plain.noise, rel=0.5)
