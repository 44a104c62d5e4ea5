"""Graph breaks: code that the compiler leaves to Python runs in the region, and code after it is compiled in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, lstm
from pytest_amp.torch_private import compiled_graphs

from .programs import AMBIENT, BACKENDS, Program, Tensors, evaluate, expect_same_dtypes, expect_same_values, run

_FUNCTIONS = ("inside", "called", "between", "nested")


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def _nothing() -> None:
    """Do nothing; disabled for the compiler, the call is a graph break."""


def functions(device_type: str, low: torch.dtype, *, broken: bool) -> dict[str, Program]:
    """Return functions with a break inside a region, between two regions, inside a callee of a region, or with none."""
    in_python = torch.compiler.disable(_nothing) if broken else _nothing
    product = torch.compiler.disable(_product) if broken else _product

    def inside(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low):
            before = x @ w[0]
            in_python()
            after = x @ w[1]
        return [before, after, x @ w[2]]

    def called(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low):
            output = product(x, w[0])
        return [output, product(x, w[1])]

    def between(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low):
            first = x @ w[0]
        in_python()
        with torch.autocast(device_type, enabled=False):
            second = x @ w[1]
        return [first, second, x @ w[2]]

    def nested(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low):
            outer = x @ w[0]
            with torch.autocast(device_type, enabled=False):
                in_python()
                float32 = x @ w[1]
            in_python()
            last = x @ w[2]
        return [outer, float32, last, x @ w[3]]

    return {"inside": inside, "called": called, "between": between, "nested": nested}


@BACKENDS
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_a_region_survives_a_graph_break(amp: SuiteAmp, function: str, backend: str) -> None:
    """Call in each ambient region (the kind of pytorch/pytorch#95837)."""
    eager_function = functions(amp.device.type, amp.dtype, broken=False)[function]
    compiled = torch.compile(functions(amp.device.type, amp.dtype, broken=True)[function], backend=backend)
    graphs, before = [], compiled_graphs()
    for ambient in AMBIENT:
        result, eager = evaluate(amp, compiled, ambient), evaluate(amp, eager_function, ambient)
        what = f"a break {function} ({backend}), called in {ambient}"
        expect_same_dtypes(amp, what, result, eager)
        exact = evaluate(amp, eager_function, ambient, dtype=torch.float64)
        expect_same_values(amp, what, result.outputs, eager.outputs, exact)
        graphs.append("+".join(result.dtypes()))
    assert compiled_graphs() > before, "nothing was compiled"
    amp.observe(f"a break {function}, {backend}", [*graphs], kind="dtype")


def _cells() -> Iterator[object]:
    """Yield a function and its ambient region; products in a disabled region inside one have the wrong gradient."""
    for function in _FUNCTIONS:
        for kind in ("none", "low"):
            # A break within a region, and one in nested regions, are the most informative.
            marks = [] if function in {"inside", "nested"} else [pytest.mark.amp_long]
            yield pytest.param(function, kind, id=f"{function}, {kind}", marks=marks)


@pytest.mark.parametrize(("function", "kind"), list(_cells()))
def test_gradients_pass_a_graph_break(amp: SuiteAmp, function: str, kind: str) -> None:
    """Backward of two consecutive graphs, the second of which begins inside a region, gives eager's gradients."""
    eager_function = functions(amp.device.type, amp.dtype, broken=False)[function]
    compiled = torch.compile(functions(amp.device.type, amp.dtype, broken=True)[function], backend="aot_eager")
    result, eager = run(amp, compiled, kind), run(amp, eager_function, kind)
    exact = run(amp, eager_function, kind, dtype=torch.float64)
    what = f"backward of a break {function}, called in {kind}"
    expect_same_values(amp, what, result.gradients, eager.gradients, exact)


def test_the_region_is_on_where_python_asks(amp: SuiteAmp) -> None:
    """A disabled function sees the state that the compiled function around it has set."""
    states: list[tuple[bool, torch.dtype]] = []

    @torch.compiler.disable
    def ask() -> None:
        states.append((torch.is_autocast_enabled(amp.device.type), torch.get_autocast_dtype(amp.device.type)))

    device_type, dtype = amp.device.type, amp.dtype

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type, dtype):
            first = x @ x
            ask()
            with torch.autocast(device_type, enabled=False):
                ask()
            return first

    torch.compile(function, backend="eager")(torch.randn(4, 4, device=amp.device.torch_device))
    assert [enabled for enabled, _ in states] == [True, False]
    assert states[0][1] is amp.dtype


def test_a_hook_runs_in_the_region(amp: SuiteAmp) -> None:
    """A forward hook that is left to Python computes in the region of the call."""
    layer, extra = (nn.Linear(8, 8).to(amp.device.torch_device) for _ in range(2))
    dtypes: list[torch.dtype] = []

    @torch.compiler.disable
    def hook(_module: nn.Module, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        dtypes.append(extra(inputs[0]).dtype)

    layer.register_forward_hook(hook)
    with amp.autocast():
        result = torch.compile(layer, backend="eager")(torch.randn(4, 8, device=amp.device.torch_device))
    assert result.dtype is amp.dtype
    assert dtypes == [amp.dtype]


@pytest.mark.amp_parametrize("case", lambda _: [pytest.param(lstm(), id="lstm")])
def test_a_recurrent_layer_is_left_to_python(amp: SuiteAmp, case: Case) -> None:
    """Dynamo breaks at an LSTM: its cells run in eager, in the region, and the head behind it is compiled."""
    amp.check_compiled(case, backend="aot_eager")
