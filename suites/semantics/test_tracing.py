"""Traces keep the casts, or the region: torch.jit, torch.fx, make_fx and torch.export."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.export
from torch import nn
from torch.fx.experimental import proxy_tensor

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .state import OTHER, State

QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class _Twice(nn.Module):
    """One weight, used twice: the second use reads the cast cache."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(batch))  # type: ignore[no-any-return]


@QUIET
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_jit_trace_works_in_a_region(amp: SuiteAmp, *, cache: bool) -> None:
    """Trace with the cache, and without it as torch's documentation advises: the casts are part of the graph."""
    model = _Twice().to(amp.device.torch_device)
    batch = torch.randn(2, 4, device=amp.device.torch_device)
    with amp.autocast(cache_enabled=cache):
        traced = torch.jit.trace(model, batch)
        expected = model(batch)
        actual = traced(batch)
    assert actual.dtype is amp.dtype
    assert torch.equal(actual, expected)
    assert torch.equal(traced(batch), expected), "a trace loses its casts outside the region"


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.mm(left, right)


class _Linear(nn.Module):
    """Single layer, so that it can be scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch)  # type: ignore[no-any-return]


@QUIET
@pytest.mark.parametrize("scripted", ["function", "module", "frozen module", "loaded module"])
def test_a_script_follows_the_ambient_region(amp: SuiteAmp, scripted: str) -> None:
    """Follow the region from the first, profiled run to the optimized ones; in each dtype, and in float32 outside."""
    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    if scripted == "function":
        function = torch.jit.script(_product)

        def call() -> torch.Tensor:
            return function(matrix, matrix)  # type: ignore[no-any-return]

    else:
        module = torch.jit.script(_Linear().to(amp.device.torch_device).eval())
        if scripted == "frozen module":
            module = torch.jit.freeze(module)
        if scripted == "loaded module":
            file = io.BytesIO()
            torch.jit.save(module, file)
            file.seek(0)
            module = torch.jit.load(file)

        def call() -> torch.Tensor:
            return module(matrix)  # type: ignore[no-any-return]

    actual = []
    for dtype, enabled in ((amp.dtype, True), (OTHER[amp.dtype], True), (amp.dtype, False)):
        with amp.autocast(dtype=dtype, enabled=enabled):
            actual.append({call().dtype for _ in range(3)})
    actual.append({call().dtype for _ in range(3)})
    assert actual == [{amp.dtype}, {OTHER[amp.dtype]}, {torch.float32}, {torch.float32}]


# Device and dtype are literals: a script allows nothing else.
def _bf16_region(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cuda", dtype=torch.bfloat16):
        low = torch.mm(left, right)
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        float32 = torch.mm(left, right)
    return low, float32


def _fp16_region(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.float16), torch.autocast("cuda", dtype=torch.float16):
        low = torch.mm(left, right)
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        float32 = torch.mm(left, right)
    return low, float32


@QUIET
@pytest.mark.parametrize("ambient", ["none", "other dtype"])
def test_a_scripts_own_regions_decide(amp: SuiteAmp, ambient: str) -> None:
    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    script = torch.jit.script(_bf16_region if amp.dtype is torch.bfloat16 else _fp16_region)
    with amp.autocast(enabled=ambient != "none", dtype=OTHER[amp.dtype]):
        actual = {tuple(tensor.dtype for tensor in script(matrix, matrix)) for _ in range(3)}
    assert actual == {(amp.dtype, torch.float32)}


def test_an_fx_graph_module_follows_the_ambient_region(amp: SuiteAmp) -> None:
    """``torch.fx.symbolic_trace`` records calls above autocast."""
    layer = _Linear().to(amp.device.torch_device)
    batch = torch.randn(2, 4, device=amp.device.torch_device)
    traced = torch.fx.symbolic_trace(layer)
    with amp.autocast():
        actual, expected = traced(batch), layer(batch)
    assert actual.dtype is amp.dtype
    assert torch.equal(actual, expected)
    assert traced(batch).dtype is torch.float32


def _targets(graph: Any) -> list[str]:
    return [str(getattr(node.target, "__name__", node.target)) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("where", ["around", "inside"])
def test_make_fx_records_the_casts(amp: SuiteAmp, where: str) -> None:
    """Casts are in the graph, which computes the same outside of any region."""
    matrix, batch = (torch.randn(4, 4, device=amp.device.torch_device) for _ in range(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast(enabled=where == "inside" or torch.is_autocast_enabled(amp.device.type)):
            return torch.mm(x, matrix)

    before = State.now(amp.device.type)
    with amp.autocast(enabled=where == "around"):
        graph = proxy_tensor.make_fx(function)(batch)
    assert State.now(amp.device.type) == before
    actual = graph(batch)
    assert actual.dtype is amp.dtype, (
        f"a graph of make_fx computes in {dtype_name(actual.dtype)}: {_targets(graph.graph)}"
    )
    assert torch.equal(actual, torch.mm(batch.to(amp.dtype), matrix.to(amp.dtype)))
    assert any("_to_copy" in target for target in _targets(graph.graph))


def test_make_fx_before_dispatch_records_the_region(amp: SuiteAmp) -> None:
    """The graph for torch.export has an entry and an exit of the region, and no casts."""
    matrix, batch = (torch.randn(4, 4, device=amp.device.torch_device) for _ in range(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(amp.device.type, amp.dtype):
            return x @ matrix

    graph = proxy_tensor.make_fx(function, pre_dispatch=True)(batch)
    targets = _targets(graph.graph)
    amp.observe("make_fx before dispatch", ", ".join(targets), kind="state")
    assert targets[0] == "_enter_autocast"
    assert targets[-1] == "_exit_autocast"
    before = State.now(amp.device.type)
    assert torch.equal(graph(batch), batch.to(amp.dtype) @ matrix.to(amp.dtype))
    assert State.now(amp.device.type) == before


class _Regions(nn.Module):
    """Model with a region, a float32 disabled region, and a layer in neither."""

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.device_type, self.dtype = device_type, dtype
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.autocast(self.device_type, dtype=self.dtype):
            low = self.layers[0](batch)
        with torch.autocast(self.device_type, enabled=False):
            float32 = self.layers[1](batch)
        return low, float32, self.layers[2](batch)


def _dtypes(values: Any) -> list[torch.dtype]:
    return [value.dtype for value in values]


def _recorded(program: Any) -> list[torch.dtype]:
    """Return the dtypes that an exported program records for its results."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    return [argument.meta["val"].dtype for argument in output.args[0]]


def _exported(amp: SuiteAmp) -> tuple[Any, Any, torch.Tensor]:
    """Return a program, its module and an input."""
    module = _Regions(amp.device.type, amp.dtype).to(amp.device.torch_device).eval()
    batch = torch.randn(2, 4, device=amp.device.torch_device)
    return torch.export.export(module, (batch,)), module, batch


@QUIET
@pytest.mark.parametrize("kind", ["recorded", "run", "decomposed"])
def test_an_exported_program_keeps_its_regions(amp: SuiteAmp, kind: str) -> None:
    """Compare recorded dtypes, results, and results after regions are decomposed into casts."""
    program, module, batch = _exported(amp)
    expected = [amp.dtype, torch.float32, torch.float32]
    if kind == "recorded":
        assert _recorded(program) == expected
        return
    run: Callable[..., Any] = (program.run_decompositions() if kind == "decomposed" else program).module()
    assert _dtypes(run(batch)) == expected
    for left, right in zip(run(batch), module(batch), strict=True):
        assert torch.equal(left, right)


@QUIET
@pytest.mark.parametrize("kind", ["run", "decomposed"])
def test_an_exported_programs_regions_decide(amp: SuiteAmp, kind: str) -> None:
    """Programs run in a region of the other dtype keep their own regions and disabled regions."""
    program, _, batch = _exported(amp)
    run: Callable[..., Any] = (program.run_decompositions() if kind == "decomposed" else program).module()
    with amp.autocast(dtype=OTHER[amp.dtype]):
        actual = _dtypes(run(batch))
    assert actual[:2] == [amp.dtype, torch.float32]


@QUIET
def test_a_program_exported_in_a_region_is_recorded_in_its_dtype(amp: SuiteAmp) -> None:
    module = _Linear().to(amp.device.torch_device).eval()
    batch = torch.randn(2, 4, device=amp.device.torch_device)
    before = State.now(amp.device.type)
    with amp.autocast():
        program = torch.export.export(module, (batch,))
        decomposed = program.run_decompositions()
        inside = program.module()(batch)
    assert State.now(amp.device.type) == before
    assert _recorded(program) == [amp.dtype], "torch.export traces outside the region in which it is called"
    assert _recorded(decomposed) == [amp.dtype]
    assert inside.dtype is amp.dtype
    assert decomposed.module()(batch).dtype is amp.dtype, "a decomposed program loses its casts outside the region"


def test_a_program_exported_in_a_region_computes_in_it(amp: SuiteAmp) -> None:
    module = _Linear().to(amp.device.torch_device).eval()
    batch = torch.randn(2, 4, device=amp.device.torch_device)
    with amp.autocast():
        program = torch.export.export(module, (batch,))
    assert [program.module()(batch).dtype] == _recorded(program)
