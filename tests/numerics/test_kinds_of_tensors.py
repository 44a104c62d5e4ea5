"""Complex and sparse tensors, and gradients of exact zeros: compared like others, by every check that compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.numerics import is_hollow
from pytest_amp.numerics.errors import relative_error
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import Training, check_scaler
from pytest_amp.training import Setup, check_training
from tests.numerics.test_check_gradients import run
from tests.observing import unheeded

BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
CPU = find_device("cpu")


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()  # type: ignore[no-any-return]


class Spectral(nn.Module):
    """Fourier layer between two Linear: complex weights and a complex buffer."""

    def __init__(self, damage: Callable[[Tensor], Tensor] = lambda weight: weight) -> None:
        """Store ``damage``, a function that changes the weights before the product."""
        super().__init__()
        self.up, self.down, self.damage = nn.Linear(16, 16), nn.Linear(16, 8), damage
        self.spectrum = nn.Parameter(torch.randn(9, 9, dtype=torch.complex64) / 4)
        self.total: Tensor
        self.register_buffer("total", torch.zeros(9, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, 16) to (batch, 8)."""
        frequencies = torch.fft.rfft(self.up(x).float())
        self.total += frequencies.detach().sum(0)
        return self.down(torch.fft.irfft(frequencies @ self.damage(self.spectrum), n=16))  # type: ignore[no-any-return]


def spectral(damage: Callable[[Tensor], Tensor] = lambda weight: weight) -> Case:
    return Case("spectral", lambda: Spectral(damage), lambda: torch.randn(8, 16), mean_square)


def frequencies(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return a loss, and an output with a lazy conjugation."""
    y = model(x).float()
    return {"loss": y.square().mean(), "frequencies": torch.fft.rfft(y).conj()}


@BOTH
def test_complex_parameters_buffers_and_outputs_are_compared(precision: Precision) -> None:
    case = Case("spectral", Spectral, lambda: torch.randn(8, 16), frequencies)
    observed = run(case, precision=precision)
    names = {"spectral/spectrum", "spectral/buffer.total", "spectral/output.frequencies"}
    assert names <= observed.keys()
    assert all(0 < observed[name] < 0.05 for name in names)


def is_under_test(tensor: Tensor) -> bool:
    """Return whether a step runs under autocast on real tensors; float64's does neither."""
    return torch.is_autocast_enabled("cpu") and type(tensor.detach()) is Tensor


def damaging(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that changes the gradient of a tensor in the step under test."""

    def damage(weight: Tensor) -> Tensor:
        copied: Any = weight.view_as(weight)
        if is_under_test(weight):
            copied.register_hook(change)
        return copied  # type: ignore[no-any-return]

    return damage


@pytest.mark.parametrize(
    "change",
    [
        lambda gradient: torch.complex(gradient.real, torch.zeros_like(gradient.imag)),
        lambda gradient: gradient * 1.2,
        lambda gradient: gradient.conj(),
    ],
    ids=["imaginary part lost", "scaled", "conjugated"],
)
def test_wrong_gradient_of_a_complex_parameter_is_red(change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AmpFailure, match="the gradient of spectrum"):
        run(spectral(damaging(change)))


def test_complex_tensors_that_were_rounded_are_hollow() -> None:
    values = torch.randn(100, dtype=torch.complex64)
    assert is_hollow(values, torch.bfloat16) is False
    rounded = torch.view_as_complex(torch.view_as_real(values).bfloat16().float())
    assert is_hollow(rounded, torch.bfloat16) is True


def test_training_compares_complex_parameters() -> None:
    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    case = Case("spectral", Spectral, lambda: torch.randn(8, 16), mean_square)
    check_training(Setup(case, CPU, BF16, steps=20, make_optimizer=sgd), unheeded)


def test_training_with_rounded_complex_parameters_is_red() -> None:
    class Rounding(torch.optim.SGD):
        """SGD that rounds its complex parameters to bf16."""

        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                if parameter.is_complex():
                    parts = torch.view_as_real(parameter.data)
                    parts.copy_(parts.bfloat16().float())
            return result

    setup = Setup(spectral(), CPU, BF16, steps=4, make_optimizer=lambda parameters: Rounding(parameters, lr=0.1))
    with pytest.raises(AmpFailure, match="a parameter or buffer is not in float32") as raised:
        check_training(setup, unheeded)
    assert "spectrum is float32 with values of bfloat16 only" in str(raised.value)


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_scaler(
            Training(spectral(), CPU, FP16, overflow_gradients_at=(2,)), unheeded, note=unheeded, nonfinite_buffers=()
        ),
        lambda: check_training(Setup(spectral(), CPU, FP16, steps=4, make_optimizer=torch.optim.AdamW), unheeded),
    ],
    ids=["scaler", "training"],
)
def test_scaler_of_complex_gradients_is_refused_in_one_line(check: Callable[[], object]) -> None:
    """torch has no such kernel, whatever the training step does."""
    says = "case spectral: spectrum is complex, and torch's GradScaler unscales no complex gradients; expected "
    with pytest.raises(AmpUsageError, match=says) as raised:
        check()
    assert "\n" not in str(raised.value)


def test_copy_in_float64_keeps_imaginary_parts() -> None:
    """Devices without rounding models are compared with this copy."""
    copied = spectral().realise().on("cpu", torch.float64)
    assert {p.dtype for p in copied.model.parameters()} == {torch.float64, torch.complex128}
    assert bool(copied.model.get_parameter("spectrum").imag.any())
    assert copied.model.get_buffer("total").dtype == torch.complex128


def sparse(layout: str, tensor: Tensor) -> Tensor:
    """Return ``tensor`` in a sparse layout."""
    if layout in ("bsr", "bsc"):
        return getattr(tensor, f"to_sparse_{layout}")((2, 2))  # type: ignore[no-any-return]
    name = "to_sparse" if layout == "coo" else f"to_sparse_{layout}"
    return getattr(tensor, name)()  # type: ignore[no-any-return]


class Sparse(nn.Module):
    """Linear layer with a sparse buffer; its output is sparse, too."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.linear, self.layout = nn.Linear(8, 8), layout
        self.links: Tensor
        self.register_buffer("links", sparse(layout, (torch.rand(8, 8) > 0.5).float()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return a loss and the low-precision result."""
        y = f.gelu(self.linear(x))
        return {"loss": y.float().square().mean(), "result": sparse(self.layout, y)}


@BOTH
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_outputs_and_buffers_are_compared(layout: str, precision: Precision) -> None:
    case = Case("sparse", lambda: Sparse(layout), lambda: torch.randn(8, 8), lambda model, x: model(x))
    observed = run(case, precision=precision)
    assert {"sparse/output.result", "sparse/buffer.links"} <= observed.keys()
    assert 0 < observed["sparse/output.result"] < 0.05


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_wrong_sparse_output_is_red(layout: str) -> None:
    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        outputs = model(x)
        values = outputs["result"].detach()
        outputs["result"] = values * 1.1 if is_under_test(values) else values
        return outputs  # type: ignore[no-any-return]

    with pytest.raises(AmpFailure, match=r"output result under autocast"):
        run(Case("sparse", lambda: Sparse(layout), lambda: torch.randn(8, 8), loss))


class Table(nn.Module):
    """Embedding by the function, which gives sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Parameter(torch.randn(20, 8)), nn.Linear(8, 4)

    def forward(self, indices: Tensor) -> Tensor:
        """Shapes: (batch, tokens) to (batch, tokens, 4)."""
        return self.linear(f.embedding(indices, self.table, sparse=True))  # type: ignore[no-any-return]


@BOTH
def test_sparse_gradients_of_a_function_are_compared(precision: Precision) -> None:
    """Torch assembles a sparse tensor of virtual values there."""
    case = Case("table", Table, lambda: torch.randint(20, (3, 5)), mean_square)
    assert 0 < run(case, precision=precision)["table/table"] < 0.05


@BOTH
@pytest.mark.parametrize("times", [0.0, 1.0])
def test_gradients_that_are_zero_in_float64_are_not_lost(times: float, precision: Precision) -> None:
    """All gradients, or those in front of a last layer that starts at zero, as in residual networks."""

    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
        nn.init.zeros_(model.get_parameter("2.weight"))
        return model

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x).float() - 1).square().mean() * times  # type: ignore[no-any-return]

    run(Case("zero", build, lambda: torch.randn(16, 8), loss), precision=precision)


def test_gradient_that_is_none_is_missing_where_float64_has_zeros() -> None:
    """An optimizer decays a parameter with a gradient of zeros, and leaves out one without."""

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(8, 4), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            gate = self.gate.detach() if is_under_test(self.gate) else self.gate
            return self.linear(x) + gate * 0  # type: ignore[no-any-return]

    with pytest.raises(AmpFailure, match=r"the gradient of gate under autocast.* is missing") as raised:
        run(Case("gated", Detached, lambda: torch.randn(4, 8), mean_square))
    assert "norm 0 in float64; an optimizer skips parameters without a gradient" in str(raised.value)


def test_errors_of_sparse_and_conjugated_tensors() -> None:
    values = torch.randn(6, 6, dtype=torch.complex64)
    assert relative_error(values.conj(), values) > 0.1
    assert relative_error(values.conj().conj(), values) == 0
    assert relative_error(torch.eye(4).to_sparse_csr(), torch.eye(4)) == 0
