"""Programs for deployment keep their regions: torch.export, saved and loaded, and what AOTInductor makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.export
from torch import nn

from pytest_amp.amp import Amp
from pytest_amp.compiled import loaded, own_cpp_library
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import relative_error, tolerance
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import aot_compile

from .programs import OTHER
from .releases import EXPORTED

QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class _Regions(nn.Module):
    """A region, a float32 island inside it, the other dtype, and a layer in none."""

    def __init__(self, device_type: str, low: torch.dtype) -> None:
        super().__init__()
        self.device_type, self.low, self.other = device_type, low, OTHER[low]
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(self.device_type, dtype=self.low):
            low = torch.tanh(self.layers[0](batch))
            with torch.autocast(self.device_type, enabled=False):
                wide = self.layers[1](low.float())
        with torch.autocast(self.device_type, dtype=self.other):
            other = self.layers[2](batch)
        return low, wide, other, self.layers[3](batch)


def _made(amp: Amp) -> tuple[nn.Module, torch.Tensor]:
    model = _Regions(amp.device.type, amp.dtype).to(amp.device.torch_device).eval()
    return model, torch.randn(4, 16, device=amp.device.torch_device)


def _expect_same(amp: Amp, what: str, found: Any, expected: Any, *, exact: bool) -> None:
    dtypes = [[dtype_name(value.dtype) for value in each] for each in (found, expected)]
    amp.observe(what, [*dtypes[0]], kind="dtype")
    if dtypes[0] != dtypes[1]:
        raise AmpFailure(
            f"{what} on {amp.target.id} computes in other dtypes than eager",
            label_before="eager",
            before=", ".join(dtypes[1]),
            now=f"{', '.join(dtypes[0])} on torch {torch.__version__}",
            likely="a region of the model is no part of the program, or is decomposed in another one",
        )
    for left, right in zip(found, expected, strict=True):
        if exact and amp.device.kind is DeviceKind.CPU:
            assert torch.equal(left, right), f"{what} gives other bits than eager"
        else:
            # Fused kernels and other kernels for products: a rounding may fall the other way.
            assert relative_error(left, right) <= tolerance.CERTAIN * amp.precision.u * amp.config.tolerance_scale


@QUIET
@EXPORTED
def test_an_exported_program_is_the_model_when_it_is_loaded(amp: Amp, tmp_path: Path) -> None:
    """Saved to a file and read back: its regions are in the graph."""
    model, batch = _made(amp)
    with torch.no_grad():
        expected = model(batch)
        torch.export.save(torch.export.export(model, (batch,)), tmp_path / "program.pt2")
        found = torch.export.load(tmp_path / "program.pt2").module()(batch)
    _expect_same(amp, "an exported program, loaded", found, expected, exact=True)


@QUIET
@EXPORTED
def test_an_exported_program_with_dynamic_shapes_keeps_its_regions(amp: Amp) -> None:
    """Exported with one size of batch, called with another."""
    model, batch = _made(amp)
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (batch,), dynamic_shapes=({0: rows},))
        larger = torch.randn(7, 16, device=amp.device.torch_device)
        found, expected = program.module()(larger), model(larger)
    _expect_same(amp, "an exported program, another size", found, expected, exact=True)


@QUIET
@EXPORTED
def test_a_compiled_program_keeps_its_regions(amp: Amp) -> None:
    """torch.compile of an exported program's module, called in none and in a region of the other dtype."""
    model, batch = _made(amp)
    with torch.no_grad():
        program = torch.export.export(model, (batch,)).module()
        compiled = torch.compile(program, backend="aot_eager")
        _expect_same(amp, "an exported program, compiled", compiled(batch), model(batch), exact=True)
        with amp.autocast(dtype=OTHER[amp.dtype]):
            found, expected = compiled(batch), model(batch)
    _expect_same(amp, "an exported program, compiled, in the other dtype", found, expected, exact=True)


@pytest.mark.amp_long
@QUIET
@EXPORTED
def test_aot_inductor_keeps_the_regions(amp: Amp, needs: Callable[[str], str], tmp_path: Path) -> None:
    """Compiled ahead of time and loaded: the library has casts and no regions, so that none around it matters."""
    needs("inductor")
    model, batch = _made(amp)
    package = tmp_path / "model.pt2"
    with torch.no_grad():
        expected = model(batch)
        aot_compile(torch.export.export(model, (batch,)), str(package))
        linked = own_cpp_library(package)
        if linked is not None:
            amp.missing("compiler", linked)
        run = loaded(package, amp.device)
        for called in ("outside", "in the other dtype"):
            with amp.autocast(dtype=OTHER[amp.dtype], enabled=called != "outside"):
                found = run(batch)
            _expect_same(amp, f"an AOTInductor library, {called}", found[:3], expected[:3], exact=False)
            assert len(found) == 4
            assert found[3].dtype is torch.float32, (
                "what is in no region is float32 in the library, wherever it is called"
            )
