"""Overflow in forward: running statistics that torch overwrites are a note, every other buffer is a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.precision import Precision
from tests.observing import Noted
from tests.project import Project
from tests.scaler.checked import BOTH, checked


def case(layer: Callable[[], nn.Module], shape: tuple[int, ...] = (6, 4)) -> Case:
    """Return a linear layer, ``layer`` on its result in ``shape``, and a second linear layer."""
    return Case(
        "normed",
        lambda: nn.Sequential(nn.Linear(8, 24), nn.Unflatten(1, shape), layer(), nn.Flatten(), nn.Linear(24, 1)),
        lambda: torch.randn(6, 8),
        lambda model, batch: model(batch).float().square().mean(),
    )


def run(case: Case, **options: Any) -> Noted:
    noted = Noted()
    checked(case, noted, **options)
    return noted


class Subclass(nn.BatchNorm1d):
    """Subclass with an activation, as libraries have them."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.gelu(super().forward(values))


class OtherNames(nn.Module):
    """torch's operator on statistics of different names."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("width", torch.ones(6))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(values, self.centre, self.width, training=True)  # type: ignore[arg-type]


class OtherInstances(OtherNames):
    """The same with instance norm: torch updates copies, and writes their mean back."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.instance_norm(values, self.centre, self.width)  # type: ignore[arg-type]


class Average(nn.Module):
    """Moving average of a module, with the name but without the operator of torch's running statistics."""

    def __init__(self, name: str = "running_mean") -> None:
        super().__init__()
        self.name = name
        self.register_buffer(name, torch.zeros(6))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.get_buffer(self.name).lerp_(values.float().mean((0, 2)), 0.1)
        return values


class NormOfConstants(nn.Module):
    """Normalization in evaluation mode, which updates nothing: the model itself overwrites its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("width", torch.ones(6))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.get_buffer("centre").lerp_(values.float().mean((0, 2)), 0.1)
        return functional.batch_norm(values, self.centre, self.width)  # type: ignore[arg-type]


def compiled() -> nn.Module:
    layer = nn.BatchNorm1d(6)
    layer.compile(backend="eager")
    return layer


def three_dimensions() -> nn.Module:
    return nn.Sequential(nn.Unflatten(2, (2, 2, 1)), nn.BatchNorm3d(6))


LAYERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), "2"),
    "BatchNorm2d": (lambda: nn.Sequential(nn.Unflatten(2, (2, 2)), nn.BatchNorm2d(6)), "2.1"),
    "BatchNorm3d": (three_dimensions, "2.1"),
    "cumulative": (lambda: nn.BatchNorm1d(6, momentum=None), "2"),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(6, track_running_stats=True), "2"),
    "subclass": (lambda: Subclass(6), "2"),
    "functional": (OtherNames, "2"),
    "functional instances": (OtherInstances, "2"),
    "script": (lambda: torch.jit.script(OtherNames()), "2"),
    "compiled": (compiled, "2"),
}


@BOTH
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_running_statistics_are_noted_with_their_layer(precision: Precision, name: str) -> None:
    layer, path = LAYERS[name]
    noted = run(case(layer), precision=precision)
    (note,) = noted.notes
    assert f"normed: the planted inf stays in the running statistics of {path}. torch updates them" in note
    assert "pytorch/pytorch#115500" in note
    assert len(noted["normed/spoilt buffers"]) == 2


def test_note_names_twelve_layers_and_counts_the_rest() -> None:
    noted = run(case(lambda: nn.Sequential(*(nn.BatchNorm1d(6) for _ in range(14)))))
    assert "statistics of 2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7, 2.8, 2.9, 2.10, 2.11 and 2 more." in noted.notes[0]


def test_number_of_runs_is_independent_of_the_number_of_layers() -> None:
    runs = []
    for layers in (1, 14):
        models: list[nn.Module] = []

        def layer(layers: int = layers, models: list[nn.Module] = models) -> nn.Module:
            models.append(nn.Sequential(*(nn.BatchNorm1d(6) for _ in range(layers))))
            return models[-1]

        run(case(layer))
        runs.append(len(models))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "nonfinite_buffers", [["*.running_mean", "*.running_var"], ["2.*"], ["2.running_mean", "2.running_var"]]
)
def test_patterns_and_names_accept_statistics_without_a_note(nonfinite_buffers: list[str]) -> None:
    noted = run(case(lambda: nn.BatchNorm1d(6)), nonfinite_buffers=nonfinite_buffers)
    assert not noted.notes
    assert noted["normed/spoilt buffers"] == ["2.running_mean", "2.running_var"]


@BOTH
@pytest.mark.parametrize("layer", [Average, NormOfConstants])
def test_other_buffers_are_a_failure(precision: Precision, layer: Callable[[], nn.Module]) -> None:
    name = "2.running_mean" if layer is Average else "2.centre"
    with pytest.raises(AmpFailure) as raised:
        run(case(layer), precision=precision)
    text = str(raised.value)
    assert f"normed: an overflow is left in buffers: {name}" in text
    assert f"accept    nonfinite_buffers=['{name}'] names them, or a pattern" in text
    assert not run(case(layer), precision=precision, nonfinite_buffers=["2.*"]).notes


def test_failure_names_other_buffers_without_statistics() -> None:
    layers = case(lambda: nn.Sequential(nn.BatchNorm1d(6), Average("mean")))
    with pytest.raises(AmpFailure, match=r"left in buffers: 2\.1\.mean\n"):
        run(layers)
    (note,) = run(layers, nonfinite_buffers=["2.1.mean"]).notes
    assert "running statistics of 2.0." in note


class Overflowing(nn.BatchNorm1d):
    """Statistics of values beyond the range of the low dtype; the output is finite."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        super().forward((values.detach().float() * 1e39).to(values.dtype))
        return values


@BOTH
def test_statistics_that_overflow_by_themselves_are_a_failure(precision: Precision) -> None:
    """Fail although these statistics are those of torch, since no inf was planted there."""
    with pytest.raises(AmpFailure, match=r"left in buffers: 2\.running_mean, 2\.running_var\n") as raised:
        run(case(lambda: Overflowing(6)), precision=precision)
    assert "none was planted in the forward pass of iteration 0" in str(raised.value)


def test_unknown_buffer_name_is_refused() -> None:
    with pytest.raises(
        AmpUsageError,
        match=r"nonfinite_buffers='\*\.mean', and normed has no such buffer; it has 2\.running_mean, 2\.r",
    ):
        run(case(lambda: nn.BatchNorm1d(6)), nonfinite_buffers=["*.mean"])


@pytest.mark.parametrize("nonfinite_buffers", ["2.running_mean", "2.*"])
def test_finite_buffer_named_as_nonfinite_is_a_failure(nonfinite_buffers: str) -> None:
    with pytest.raises(AmpFailure, match=r"normed: finite, and named in nonfinite_buffers: 2\."):
        run(case(lambda: nn.BatchNorm1d(6)), overflow_activations_at=(), nonfinite_buffers=[nonfinite_buffers])


NETWORK = """
import torch
from torch import nn


def test_a_network(amp):
    layers = lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    loss = lambda model, batch: model(batch).float().square().mean()
    amp.check_scaler(amp.case(layers, lambda: torch.randn(6, 8), loss))
"""


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_summary_and_report_have_the_note(project: Project, processes: tuple[str, ...], tmp_path: Any) -> None:
    """Print the note even if every warning is an error."""
    project.write(test_it=NETWORK)
    page = tmp_path / "page.html"
    arguments = ("--amp-device=cpu", "--amp-dtype=fp16", "-W", "error::UserWarning", f"--amp-report=html:{page}")
    result = project.apart(*arguments, *processes)
    result.assert_outcomes(passed=1)
    note = "cpu-fp16: a_network: the planted inf stays in the running statistics of 1. torch"
    result.stdout.fnmatch_lines([f"note      {note} *"])
    assert note in page.read_text(encoding="utf-8")


class Codebook(nn.Module):
    """Layer that writes the average of its input into a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(1, 24).requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.codes.weight.data.lerp_(x.detach().flatten(1).float().mean(0, keepdim=True), 0.1)
        result: torch.Tensor = x + 0.1 * self.codes.weight.view(x.shape[1:])
        return result


@BOTH
def test_frozen_parameter_that_forward_writes_is_as_a_buffer(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match=r"an overflow is left in frozen parameters: 2\.codes\.weight\n"):
        run(case(Codebook), precision=precision)
    assert run(case(Codebook), precision=precision, nonfinite_buffers=["2.codes.weight"])
