"""Regions inside and around a compiled function are those of eager: dtypes, values, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.torch_private import backward_without_region

from .programs import (
    AMBIENT,
    BACKENDS,
    NAMES,
    Ran,
    Tensors,
    beyond_fp16,
    evaluate,
    expect_same_dtypes,
    expect_same_values,
    programs,
    run,
)
from .releases import HAS_BACKWARD_SETTING

#: Rows and columns: more elements than fit a block of any kernel.
_LARGE = 96
#: The regions that a program opens: "low", "other", "disabled"; outside of them it computes in the ambient one.
OPENS = {
    "none": set[str](),
    "asks": set[str](),
    "same dtype": {"low"},
    "other dtype": {"other"},
    "disabled": {"disabled"},
    "island": {"disabled"},
    "nested": {"low", "other", "disabled"},
    "decorated": {"low", "disabled"},
    "left by return": {"low"},
    "in a loop": {"low", "disabled"},
    "conditional": {"low"},
    "without cache": {"low"},
    "checkpointed": {"low"},
    "checkpointed island": {"disabled"},
}


def _cell(program: str, ambient: str) -> object:
    """Return a case. Where a product's region is not the ambient one, its backward is a known fault."""
    all_float32 = ambient == "none" and not OPENS[program] & {"low", "other"}
    marks = [pytest.mark.amp(dtypes=["bf16"])] if all_float32 else []
    return pytest.param(program, ambient, id=f"{program}, {ambient}", marks=marks)


def _cells() -> Iterator[object]:
    """Yield each program in each ambient region; one that opens no low region needs the other dtype only once."""
    for program in NAMES:
        yield _cell(program, "none")
        yield _cell(program, "low")
        if OPENS[program] & {"low", "other"}:
            yield _cell(program, "other")


@BACKENDS
@pytest.mark.parametrize("program", NAMES)
def test_outputs_are_those_of_eager(amp: SuiteAmp, program: str, backend: str) -> None:
    """Call one callable in each ambient region in turn, and in the first one again."""
    function = programs(amp.device.type, amp.dtype)[program]
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    graphs = []
    for ambient in (*AMBIENT, AMBIENT[0]):
        eager, exact = evaluate(amp, function, ambient), evaluate(amp, function, ambient, dtype=torch.float64)
        result = evaluate(amp, compiled, ambient)
        what = f"{program} ({backend}), called in {ambient}"
        expect_same_dtypes(amp, what, result, eager)
        expect_same_values(amp, what, result.outputs, eager.outputs, exact)
        graphs.append("+".join(result.dtypes()))
    amp.observe(f"{program}, {backend}", [*graphs], kind="dtype")


@pytest.mark.parametrize(("program", "ambient"), list(_cells()))
def test_gradients_are_those_of_eager(amp: SuiteAmp, program: str, ambient: str) -> None:
    """Values computed in float32 have float32 gradients, in any ambient region; outputs are compared, too."""
    function = programs(amp.device.type, amp.dtype)[program]
    scales = beyond_fp16(amp, function, ambient)
    actual = run(amp, torch.compile(function, backend="aot_eager", fullgraph=True), ambient, scales=scales)
    eager = run(amp, function, ambient, scales=scales)
    exact = run(amp, function, ambient, dtype=torch.float64, scales=scales)
    what = f"a training step of {program}, called in {ambient}"
    expect_same_dtypes(amp, what, actual, eager)
    expect_same_values(amp, what, [*actual.outputs, *actual.gradients], [*eager.outputs, *eager.gradients], exact)


#: With inductor the default tier runs the most informative program, the long tier all of them.
_MORE = pytest.mark.amp_long
#: Regions of both dtypes are in it.
_ONE = [pytest.mark.amp(dtypes=["bf16"])]


@pytest.mark.parametrize("program", [pytest.param(name, marks=_ONE if name == "nested" else _MORE) for name in NAMES])
def test_fused_kernels_compute_in_the_regions(amp: SuiteAmp, needs: Callable[[str], str], program: str) -> None:
    """Outputs and gradients by inductor, called in no region, where both are correct."""
    function = programs(amp.device.type, amp.dtype)[program]
    compiled = torch.compile(function, backend=needs("inductor"), fullgraph=True)
    eager, exact = run(amp, function, "none"), run(amp, function, "none", dtype=torch.float64)
    result = run(amp, compiled, "none")
    expect_same_dtypes(amp, f"{program} (inductor)", result, eager)
    actual, expected = [*result.outputs, *result.gradients], [*eager.outputs, *eager.gradients]
    expect_same_values(amp, f"{program} (inductor)", actual, expected, exact, fused=True)


@HAS_BACKWARD_SETTING
@pytest.mark.parametrize("program", ["island", "nested", "checkpointed island"])
def test_gradients_with_backward_traced_outside_are_those_of_eager(amp: SuiteAmp, program: str) -> None:
    """The setting ``backward_pass_autocast = "off"`` fixes the fault that is reported above."""
    function = programs(amp.device.type, amp.dtype)[program]
    with backward_without_region():
        actual = run(amp, torch.compile(function, backend="aot_eager", fullgraph=True), "low")
    eager, exact = run(amp, function, "low"), run(amp, function, "low", dtype=torch.float64)
    expect_same_values(amp, f"backward of {program}, traced outside", actual.gradients, eager.gradients, exact)


@pytest.mark.parametrize("program", ["none", "same dtype"])
def test_backward_inside_the_region_is_that_of_eager(amp: SuiteAmp, program: str) -> None:
    """Backward inside the region of forward, which is not recommended but common."""
    function = programs(amp.device.type, amp.dtype)[program]
    actual = run(amp, torch.compile(function, backend="aot_eager", fullgraph=True), "low", inside=True)
    eager = run(amp, function, "low", inside=True)
    exact = run(amp, function, "low", dtype=torch.float64, inside=True)
    expect_same_values(amp, f"backward of {program} in the region", actual.gradients, eager.gradients, exact)


@pytest.mark.parametrize("where", ["in the region", "in an island"])
def test_large_results_are_those_of_eager(amp: SuiteAmp, where: str) -> None:
    """Thousands of elements: float32 and low-precision results keep every bit, as do gradients of large weights."""
    device_type = amp.device.type

    def function(x: torch.Tensor, w: Tensors) -> Tensors:
        low = x @ w[0]
        with torch.autocast(device_type, enabled=False):
            float32 = low.to(w[1].dtype) @ w[1]
        return [low, float32 if where == "in an island" else torch.softmax(low, -1), x * w[2]]

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    actual, eager = (run(amp, call, "low", size=_LARGE) for call in (compiled, function))
    exact = run(amp, function, "low", dtype=torch.float64, size=_LARGE)
    what = f"large results {where}"
    expect_same_dtypes(amp, what, actual, eager)
    # The gradients of a disabled region, which is traced in the region, are checked above.
    expect_same_values(amp, what, actual.outputs, eager.outputs, Ran(exact.outputs, []))
    if where == "in the region":
        expect_same_values(amp, f"gradients of {what}", actual.gradients, eager.gradients, exact)


def test_the_region_is_as_it_was_after_a_compiled_call(amp: SuiteAmp) -> None:
    """A call compiled in a region leaves it on with its dtype, and leaves autocast off outside."""
    functions = programs(amp.device.type, amp.dtype)
    states = []
    for program in ("nested", "disabled", "other dtype"):
        compiled = torch.compile(functions[program], backend="aot_eager", fullgraph=True)
        with amp.autocast():
            compiled(
                torch.ones(16, 16, device=amp.device.torch_device),
                [torch.ones(16, 16, device=amp.device.torch_device)] * 6,
            )
            inside = torch.is_autocast_enabled(amp.device.type), torch.get_autocast_dtype(amp.device.type)
        states.append((*inside, torch.is_autocast_enabled(amp.device.type)))
    assert states == [(True, amp.dtype, False)] * 3
