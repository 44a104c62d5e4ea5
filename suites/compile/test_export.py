"""Programs for deployment keep their regions: torch.export, saved and loaded, and AOTInductor's libraries."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.export
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.compiled import loaded, own_cpp_library
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import relative_error, tolerance
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import aot_compile

from .programs import OTHER
from .releases import DTYPE_IS_GUARDED

QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class _Regions(nn.Module):
    """Model with a region, a disabled region inside it, a region of the other dtype, and a layer in none."""

    def __init__(self, device_type: str, low: torch.dtype) -> None:
        super().__init__()
        self.device_type, self.low, self.other = device_type, low, OTHER[low]
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(self.device_type, dtype=self.low):
            low = torch.tanh(self.layers[0](batch))
            with torch.autocast(self.device_type, enabled=False):
                float32 = self.layers[1](low.float())
        with torch.autocast(self.device_type, dtype=self.other):
            other = self.layers[2](batch)
        return low, float32, other, self.layers[3](batch)


def _model_and_batch(amp: SuiteAmp) -> tuple[nn.Module, torch.Tensor]:
    model = _Regions(amp.device.type, amp.dtype).to(amp.device.torch_device).eval()
    return model, torch.randn(4, 16, device=amp.device.torch_device)


def _expect_same(amp: SuiteAmp, what: str, actual: Any, expected: Any, *, exact: bool) -> None:
    dtypes = [[dtype_name(value.dtype) for value in values] for values in (actual, expected)]
    amp.observe(what, [*dtypes[0]], kind="dtype")
    if dtypes[0] != dtypes[1]:
        raise AmpFailure(
            f"{what} on {amp.target.id} computes in different dtypes than eager",
            label_before="eager",
            before=", ".join(dtypes[1]),
            now=f"{', '.join(dtypes[0])} on torch {torch.__version__}",
            likely="the program lacks a region of the model, or decomposes it inside a different region",
        )
    for left, right in zip(actual, expected, strict=True):
        if exact and amp.device.kind is DeviceKind.CPU:
            assert torch.equal(left, right), f"{what} differs bitwise from eager"
        else:
            # Fused kernels and other kernels for products may round in the opposite direction.
            assert relative_error(left, right) <= tolerance.CERTAIN * amp.precision.u * amp.config.tolerance_scale


@QUIET
def test_an_exported_program_is_the_model_when_it_is_loaded(amp: SuiteAmp, tmp_path: Path) -> None:
    """A program that was saved to a file and loaded again has its regions in the graph."""
    model, batch = _model_and_batch(amp)
    with torch.no_grad():
        expected = model(batch)
        torch.export.save(torch.export.export(model, (batch,)), tmp_path / "program.pt2")
        actual = torch.export.load(tmp_path / "program.pt2").module()(batch)
    _expect_same(amp, "an exported program, loaded", actual, expected, exact=True)


def _dynamic(model: nn.Module, batch: torch.Tensor) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=64)
    return torch.export.export(model, (batch,), dynamic_shapes=({0: rows},))


def _read_back(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


#: Forms of a program with dynamic shapes, and whether each keeps regions, and so follows the
#: one in which it is called: a decomposed program has casts in their place.
STAGES: dict[str, tuple[Callable[[torch.export.ExportedProgram], Callable[..., Any]], bool]] = {
    "as it is": (lambda program: program.module(), True),
    "loaded": (lambda program: _read_back(program).module(), True),
    "taken apart": (lambda program: program.run_decompositions().module(), False),
    "compiled": (lambda program: torch.compile(program.module(), backend="aot_eager", dynamic=True), True),
}
SIZES = (7, 2)


@QUIET
@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=() if stage == "as it is" else pytest.mark.amp_long) for stage in STAGES]
)
def test_sizes_and_regions_of_a_program_change_together(amp: SuiteAmp, stage: str) -> None:
    """A program has the dtypes of the region in which it is called, for every size, as the model does."""
    model, batch = _model_and_batch(amp)
    becomes, follows = STAGES[stage]
    with torch.no_grad():
        program = becomes(_dynamic(model, batch))
        for size in SIZES:
            other = torch.randn(size, 16, device=amp.device.torch_device)
            for name, dtype in {"none": None, "its own": amp.dtype, "the other": OTHER[amp.dtype]}.items():
                # Torch 2.6 has no guard on the dtype of a region: pytorch/pytorch#112260.
                if dtype is not None and not (follows and (stage != "compiled" or DTYPE_IS_GUARDED)):
                    continue
                with amp.autocast(dtype=dtype or amp.dtype, enabled=dtype is not None):
                    actual, expected = program(other), model(other)
                _expect_same(amp, f"a dynamic program, {stage}, {size} rows, in {name}", actual, expected, exact=True)


# Not run on CUDA.
@pytest.mark.amp(devices=["cpu"])
@QUIET
def test_a_program_that_dynamo_exports_keeps_its_regions(amp: SuiteAmp) -> None:
    model, batch = _model_and_batch(amp)
    with torch.no_grad():
        actual, expected = torch.export.export(model, (batch,), strict=True).module()(batch), model(batch)
    _expect_same(amp, "a program that Dynamo exports", actual, expected, exact=True)


@QUIET
@pytest.mark.parametrize("called", ["none", "the other"])
def test_a_program_that_is_exported_in_a_region_keeps_its_own(amp: SuiteAmp, called: str) -> None:
    """The region around ``export`` is not part of the program, which is called in a different one, or in none."""
    model, batch = _model_and_batch(amp)
    with torch.no_grad():
        with amp.autocast():
            program = _dynamic(model, batch).module()
        larger = torch.randn(7, 16, device=amp.device.torch_device)
        with amp.autocast(dtype=OTHER[amp.dtype], enabled=called != "none"):
            actual, expected = program(larger), model(larger)
    _expect_same(amp, f"a program that was exported in a region, in {called}", actual, expected, exact=True)


@QUIET
def test_a_program_with_dynamic_shapes_is_trained_in_its_regions(amp: SuiteAmp) -> None:
    """Gradients for a size different from that of the export equal those of the model."""
    model, batch = _model_and_batch(amp)
    program = _dynamic(model, batch).module()
    other = torch.randn(7, 16, device=amp.device.torch_device)
    gradients = []
    for trained in (model, program):
        outputs = trained(other)
        incoming = [torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype) for out in outputs]
        inputs = [parameter for _, parameter in sorted(trained.named_parameters())]
        gradients.append(torch.autograd.grad(outputs, inputs, incoming))
    assert len(gradients[0]) == 8
    _expect_same(amp, "gradients of a dynamic program", gradients[1], gradients[0], exact=True)


@QUIET
def test_a_compiled_program_keeps_its_regions(amp: SuiteAmp) -> None:
    """Compile an exported program's module, and call it in no region and in a region of the other dtype."""
    model, batch = _model_and_batch(amp)
    with torch.no_grad():
        program = torch.export.export(model, (batch,)).module()
        compiled = torch.compile(program, backend="aot_eager")
        _expect_same(amp, "an exported program, compiled", compiled(batch), model(batch), exact=True)
        with amp.autocast(dtype=OTHER[amp.dtype]):
            actual, expected = compiled(batch), model(batch)
    _expect_same(amp, "an exported program, compiled, in the other dtype", actual, expected, exact=True)


@pytest.mark.amp_long
@QUIET
def test_aot_inductor_keeps_the_regions(amp: SuiteAmp, needs: Callable[[str], str], tmp_path: Path) -> None:
    """A library compiled ahead of time, for any number of rows, has casts for regions; the caller's has no effect."""
    needs("inductor")
    model, batch = _model_and_batch(amp)
    package = tmp_path / "model.pt2"
    with torch.no_grad():
        aot_compile(_dynamic(model, batch), str(package))
        linked = own_cpp_library(package)
        if linked is not None:
            amp.missing("compiler", linked)
        run = loaded(package, amp.device)
        for called, size in (("outside", 4), ("in the other dtype", 4), ("in the other dtype", 33)):
            rows = batch if size == 4 else torch.randn(size, 16, device=batch.device)
            expected = model(rows)
            with amp.autocast(dtype=OTHER[amp.dtype], enabled=called != "outside"):
                actual = run(rows)
            what = f"an AOTInductor library, {called}" + (f", {size} rows" if size != 4 else "")
            _expect_same(amp, what, actual[:3], expected[:3], exact=False)
            assert len(actual) == 4
            assert actual[3].dtype is torch.float32, (
                "what is in no region is float32 in the library, wherever it is called"
            )
