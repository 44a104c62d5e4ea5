"""Check of a step: silent on a healthy device, and on a broken one a failure that names the cause."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases import Case, cnn, decoder, mlp
from pytest_amp.devices import Device, find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, prediction
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.planted import broken, in_low_precision, with_gradient
from tests.observing import Noted

CPU = find_device("cpu")


def run(
    case: Case, device: Device = CPU, precision: Precision = BF16, *, tolerance: float | None = None, scale: float = 1.0
) -> Noted:
    """Check on one thread, as the plugin does; return the observations."""
    observed = Noted()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check_gradients(case, Conditions(device, precision, 0, scale), observed.observe, tolerance=tolerance)
    finally:
        torch.set_num_threads(threads)
    for facts in observed.facts.values():
        assert facts["kind"] in ("error", "ratio", "count", "state")
        assert facts["kind"] == "state" or facts["unit"]
        assert facts.get("allowed") is None or math.isfinite(facts["allowed"])
    return observed


def failure(case: Case, device: Device, precision: Precision = BF16) -> str:
    with pytest.raises(AmpFailure) as raised:
        run(case, device, precision)
    text = str(raised.value)
    assert len(text.splitlines()) <= 12
    assert case.name in text
    assert f"autocast(cpu, {precision.dtype_name})" in text
    return text


class Scaled(torch.autograd.Function):
    """Custom function as users write it: in float32 within a region, whatever its inputs."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def _checkpointed(model: nn.Module, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(model, x, use_reentrant=False).float().square().mean()  # type: ignore[no-any-return]


def _scaled(model: nn.Module, x: Tensor) -> Tensor:
    return Scaled.apply(model(x)).float().square().mean()  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("loss", [_checkpointed, _scaled])
@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_code_that_queries_autocast_matches_its_reference(
    loss: Callable[[nn.Module, Tensor], Tensor], precision: Precision
) -> None:
    """Expect a reference that runs inside a region, too."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    case = Case("asks", build, lambda: torch.randn(6, 8, requires_grad=True), loss)
    assert run(case, precision=precision)["asks/summary.equal"] == 1.0


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_errors_and_summaries_are_observed(precision: Precision) -> None:
    observed = run(mlp(), precision=precision)
    assert {"mlp/output.loss", "mlp/output.logits", "mlp/0.weight", "mlp/5.bias", "mlp/input.inputs"} <= observed.keys()
    assert precision.u / 10 < observed["mlp/0.weight"] < 4 * precision.u
    assert observed["mlp/summary.equal"] == 1.0
    assert observed["mlp/summary.distance"] == 0.0
    assert observed["mlp/summary.excess"] <= 1.01
    assert observed["mlp/summary.agreement"] >= 0.99
    assert 0.1 < observed["mlp/summary.fp32"] < 1
    assert observed.facts["mlp/summary.fp32"]["allowed"] == 1


LOW = {
    "layer_norm": decoder(),
    "softmax": mlp(),
    "cross_entropy": mlp(),
    "batch_norm": cnn(),
    "embedding": decoder(),
}


@pytest.mark.parametrize("name", ["layer_norm", "cross_entropy", "batch_norm", "embedding"])
@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_operator_in_the_low_dtype_is_red(name: str, precision: Precision) -> None:
    text = failure(LOW[name], broken(name, in_low_precision), precision)
    assert re.search(r"has an error of|differs from manual casts|has dtype|is not finite|does not run", text)


def test_first_module_that_differs_is_named() -> None:
    text = failure(decoder(), broken("layer_norm", in_low_precision))
    assert "an operator in or before blocks.0.norm1, LayerNorm (bfloat16, not float32) does not follow its rule" in text


def test_missing_gradient_is_named() -> None:
    def detached(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, weight, bias = args
        return func(x, weight, None if bias is None else bias.detach(), **kwargs)

    text = failure(mlp(), broken("linear", detached))
    assert text.splitlines()[0] == (
        "AmpFailure: mlp: the gradient of 0.bias under autocast(cpu, bfloat16) is missing (also 2.bias, 5.bias)"
    )
    assert "exact     it has norm" in text


def test_gradient_of_zeros_is_named() -> None:
    def silenced(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, weight, bias = args
        return func(x, weight, bias * 0 + bias.detach(), **kwargs)

    assert "the gradient of 0.bias under autocast(cpu, bfloat16) is zero" in failure(mlp(), broken("linear", silenced))


@pytest.mark.parametrize("by", [1.01, 0.99, 2.0])
def test_scaled_gradient_is_red(by: float) -> None:
    scaled = with_gradient(lambda gradient: gradient * by)
    assert "has an error of" in failure(mlp(), broken("linear", scaled))


def test_rounded_partial_sums_are_red() -> None:
    def summed(_func: Callable[..., Any], args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        x, weight, bias = args
        parts = [x[..., i : i + 16] @ weight[:, i : i + 16].t() for i in range(0, x.shape[-1], 16)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total + bias.to(total.dtype)

    assert "in or before 0, Linear" in failure(mlp(), broken("linear", summed))


def test_batch_norm_statistics_in_the_low_dtype_are_red() -> None:
    def rounded(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for statistic in args[1:3]:
            statistic.data.copy_(statistic.data.to(torch.bfloat16))
        return result

    assert "buffer 1.running_" in failure(cnn(), broken("batch_norm", rounded))


def test_hollow_buffer_is_named() -> None:
    """Rounding is too small for an error bound, but all values are those of a low dtype, which is rare by chance."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(100))

        def forward(self, x: Tensor) -> Tensor:
            observed = self.get_buffer("seen")
            observed.copy_(f.hardtanh(1 + torch.arange(100, dtype=observed.dtype) / 64 + 2.0**-13, 0, 10))
            return self.layer(x)  # type: ignore[no-any-return]

    def rounded(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs).to(torch.bfloat16)

    case = Case("counts", Counts, lambda: torch.ones(2, 4), lambda model, x: model(x).float().sum())
    text = failure(case, broken("hardtanh", rounded))
    assert "buffer seen under autocast(cpu, bfloat16)" in text


def test_changed_output_dtype_is_named() -> None:
    def widened(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs).double()

    text = failure(mlp(), broken("cross_entropy", widened))
    assert "output loss under autocast(cpu, bfloat16) has dtype float64, it should have float32" in text


def test_non_finite_gradient_is_red() -> None:
    infinite = with_gradient(lambda gradient: gradient / 0)
    assert "is not finite" in failure(mlp(), broken("gelu", infinite))


def test_underflow_shared_with_manual_casts_is_reported_as_rounding() -> None:
    """Every gradient is zero in fp16, by its range: no kernel has lost it."""
    case = Case(
        "faint", lambda: nn.Linear(8, 4), lambda: torch.randn(4, 8), lambda m, x: 1e-14 * m(x).float().square().mean()
    )
    text = failure(case, CPU, FP16)
    assert "the predicted rounding loses 100% of the gradients" in text
    assert "underflows" in text


def test_step_that_does_not_run_is_red() -> None:
    def refused(*_arguments: Any) -> Any:
        raise RuntimeError("expected scalar type Float but found BFloat16")

    text = failure(mlp(), broken("layer_norm", refused))
    assert "mlp does not run under autocast(cpu, bfloat16)" in text
    assert "expected scalar type Float but found BFloat16" in text


def test_explicit_tolerance_replaces_noise_and_reference() -> None:
    device = broken("layer_norm", in_low_precision)
    run(decoder(), device, tolerance=0.1)
    with pytest.raises(AmpFailure, match="the given tolerance"):
        run(decoder(), CPU, tolerance=1e-4)
    run(decoder(), CPU, tolerance=1e-4, scale=1e4)


def test_tighter_tolerance_scale_is_red() -> None:
    with pytest.raises(AmpFailure, match="the noise of the predicted rounding is"):
        run(mlp(), scale=0.1)


def test_frozen_and_unused_parameters_have_no_gradients() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.unused = nn.Linear(8, 8).requires_grad_(requires_grad=False), nn.Linear(8, 8)
            self.used = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.frozen(x))  # type: ignore[no-any-return]

    case = Case("odd", Odd, lambda: torch.randn(3, 8), lambda model, x: model(x).float().square().mean())
    observed = run(case)
    assert "odd/used.weight" in observed
    assert not [name for name in observed if "frozen" in name or "unused" in name]


def test_vanishing_gradient_is_measured_relative_to_others() -> None:
    """Bias before BatchNorm: its exact gradient is zero, its real one is noise."""
    observed = run(cnn())
    assert observed["cnn/0.bias"] < 0.1


def test_gradient_of_float64_rounding_alone_may_be_zero() -> None:
    """The mean of a norm's result is its bias alone: the gradient through it cancels."""

    def build() -> nn.Module:
        norm = nn.InstanceNorm2d(8, affine=True)
        nn.init.ones_(norm.bias)
        return nn.Sequential(nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 8, 1), norm)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).mean()  # type: ignore[no-any-return]

    assert run(Case("mean", build, lambda: torch.randn(64, 16), loss))["mean/2.weight"] < 0.1


def test_sparse_gradient_is_compared() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4))

    case = Case("sparse", build, lambda: torch.tensor([1, 1, 2]), lambda model, x: model(x).float().square().sum())
    assert "sparse/0.weight" in run(case)


def test_unnamed_outputs_and_inputs_have_default_names() -> None:
    case = Case(
        "plain", lambda: nn.Linear(8, 4), lambda: torch.randn(3, 8, requires_grad=True), lambda m, x: m(x).float().sum()
    )
    assert {"plain/output.loss", "plain/input", "plain/weight", "plain/bias"} <= run(case).keys()


def test_case_with_explicit_float32_needs_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle follows it; with exact values of a float64 model the check fails."""
    case = Case(
        "fixed", lambda: nn.Linear(8, 4), lambda: torch.randn(3, 8), lambda m, x: m(x.to(torch.float32)).float().sum()
    )
    assert "fixed/weight" in run(case)
    monkeypatch.setattr(prediction, "ORACLE", frozenset())
    with pytest.raises(AmpFailure, match="fixed does not run in float64") as raised:
        run(case)
    assert "take the dtype from a parameter or an input" in str(raised.value)


def test_case_beyond_the_range_is_red() -> None:
    case = Case("big", lambda: nn.Linear(8, 4), lambda: torch.full((3, 8), 1e6), lambda m, x: m(x).float().mean())
    with pytest.raises(AmpFailure, match="big is not finite in fp16 on cpu, with manual casts, too"):
        run(case, precision=FP16)


def test_loss_scale_is_reduced_until_gradients_are_finite() -> None:
    case = Case("steep", lambda: nn.Linear(8, 4), lambda: torch.ones(3, 8), lambda m, x: m(x).float().sum() * 16)
    actual = prediction.predict(case, case.realise(), CPU, FP16, seed=0)
    assert actual.loss_scale == 2.0**16 / 4**3
    assert prediction.predict(case, case.realise(), CPU, BF16, seed=0).loss_scale == 1.0


def test_device_with_unknown_rules_is_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the format's noise; equality is not required."""
    monkeypatch.setattr(prediction, "rules_are_known", lambda _device_type: False)
    assert not prediction.predict(mlp(), mlp().realise(), CPU, BF16, seed=0).same_device
    run(mlp(), broken("layer_norm", in_low_precision))
    text = failure(mlp(), broken("linear", lambda func, args, kwargs: func(*args, **kwargs) * 1.1))
    assert "ran or accumulated in the low dtype" in text


class Halves(nn.Module):
    """Model that computes something else under autocast, in a way that manual casts share."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y * self.factor if y.dtype in (torch.bfloat16, torch.float16) else y


def halves(factor: float) -> Case:
    return Case(
        "halves", lambda: Halves(factor), lambda: torch.randn(32, 16), lambda m, x: m(x).float().square().mean()
    )


def test_noise_beyond_rounding_is_not_tolerated() -> None:
    """An error is not tolerated merely because manual casts have it, too."""
    text = failure(halves(0.5), CPU)
    assert "the predicted rounding loses 75% of the outputs" in text
    assert "up to 25% counts as rounding" in text
    assert run(halves(1.0))


def test_parameters_without_a_gradient_are_counted() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.used(x)
            return y

    observed = Noted()
    case = Case("unused", Unused, lambda: torch.randn(32, 16), lambda m, x: m(x).float().square().mean())
    check_gradients(case, Conditions(CPU, BF16, 0, 1.0), observed.observe, tolerance=None)
    counts = {name: value for name, value in observed.items() if observed.facts[name]["kind"] == "count"}
    assert counts == {"unused/summary.without_gradient": 2}
    assert observed.facts["unused/summary.without_gradient"] == {"kind": "count", "unit": "parameters"}
