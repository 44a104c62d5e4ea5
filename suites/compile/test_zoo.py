"""Every kind of network computes the same compiled as in eager: dtypes, outputs, gradients, statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, map_tensors, mlp, wider_zoo, zoo
from pytest_amp.compiled import Compilation, Where, check_compiled
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import predict, relative_error, run_step, tolerance
from pytest_amp.run.targets import Target
from pytest_amp.torch_private import compile_workers, compiled_graphs

from .releases import TAKES_NOTHING_APART


def whole(_target: Target) -> Iterator[object]:
    """Yield the cases of the zoo that Dynamo captures in one graph."""
    for case in zoo():
        if case.name != "lstm":
            yield pytest.param(case, id=case.name)


def wider(_target: Target) -> Iterator[object]:
    """Yield the networks, losses and training procedures of users."""
    for case in wider_zoo():
        yield pytest.param(case, id=case.name)


def wider_traced(_target: Target) -> Iterator[object]:
    """Yield the wider zoo as AOTAutograd traces it.

    The math back end of attention, the only one on a CPU, computes in float32 inside the operator, and its backward is
    traced in the region: a known fault. The case ``accumulated`` is left out. Eager casts a weight once that is used
    several times, and accumulates its gradients in the low dtype; a trace casts it for each use. Without the weight
    cache eager has the trace's bits.
    """
    for case in wider_zoo():
        if case.name != "accumulated":
            yield pytest.param(case, id=case.name)


def added(target: Target) -> Iterator[object]:
    """Yield the cases of projects."""
    for case in target.added_cases():
        yield pytest.param(case, id=case.name)


def _check(amp: SuiteAmp, case: Case, compilation: Compilation, *, bits: bool = False) -> None:
    check_compiled(case, compilation, amp.conditions, amp.observe, bits=bits)


@pytest.mark.amp_parametrize("case", whole)
def test_step(amp: SuiteAmp, case: Case) -> None:
    """Run the step in one graph of AOTAutograd, which calls eager's kernels: on a CPU the results are bitwise equal."""
    _check(amp, case, Compilation(backend="aot_eager", fullgraph=True), bits=TAKES_NOTHING_APART)


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", whole)
def test_step_as_dynamo_captures_it(amp: SuiteAmp, case: Case) -> None:
    """Run the graph of Dynamo as it is: bitwise equal to eager on a CPU."""
    _check(amp, case, Compilation(backend="eager", fullgraph=True), bits=True)


@pytest.mark.amp_parametrize("case", added)
def test_step_of_a_project(amp: SuiteAmp, case: Case) -> None:
    amp.check_compiled(case, backend="aot_eager")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.amp_long)])
def test_step_that_drops(amp: SuiteAmp, needs: Callable[[str], str], backend: str) -> None:
    """Dropout drops the same elements as in eager, forward and backward, and scales the remaining ones."""
    plain = mlp()
    case = replace(
        plain, name="mlp_dropout", build=lambda: nn.Sequential(nn.Dropout(0.1), plain.build(), nn.Dropout(0.1))
    )
    amp.check_compiled(case, backend=needs(backend), fullgraph=True)


@pytest.mark.parametrize("name", ["mlp", pytest.param("decoder", marks=pytest.mark.amp_long)])
def test_step_with_the_region_inside(amp: SuiteAmp, name: str) -> None:
    """The function opens the region itself; backward is outside of both, and bitwise equal to eager."""
    (case,) = (case for case in zoo() if case.name == name)
    _check(amp, case, Compilation(backend="aot_eager", fullgraph=True, region=Where.INSIDE), bits=True)


def _half(case: Case) -> Case:
    """Return ``case`` with the first half of its batch."""

    def batch() -> object:
        return map_tensors(lambda x: x[: len(x) // 2].detach().requires_grad_(x.requires_grad), case.batch())

    return replace(case, name=f"{case.name}_half", batch=batch)


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        # On CUDA AOTAutograd uses a different batch norm than eager in fp16: a known fault of test_step.
        pytest.param("cnn", marks=[pytest.mark.amp_long, pytest.mark.amp(devices=["cpu"])]),
        pytest.param("decoder", marks=pytest.mark.amp_long),
    ],
)
def test_step_with_dynamic_shapes(amp: SuiteAmp, name: str) -> None:
    """Two batch sizes through one compiled function: one graph, and for each size eager's results."""
    (case,) = (case for case in zoo() if case.name == name)
    compilation = Compilation(backend="aot_eager", fullgraph=True, dynamic=True)
    compiled = compilation.case(case, amp.conditions)
    before = compiled_graphs()
    for sized_case in (case, _half(case)):
        realised = sized_case.realise(seed=amp.config.seed)
        steps = [
            run_step(step, realised.on(amp.device.torch_device), amp.conditions.region, seed=amp.config.seed).named()
            for step in (sized_case, replace(sized_case, loss=compiled.loss))
        ]
        assert [(name, value.dtype) for name, value in steps[0].items()] == [
            (name, value.dtype) for name, value in steps[1].items()
        ]
        prediction = predict(sized_case, realised, amp.device, amp.precision, seed=amp.config.seed)
        for tensor, value in steps[1].items():
            if not torch.equal(value, steps[0][tensor]):
                size, noise = prediction.sizes[tensor], prediction.noise[tensor]
                far = relative_error(value, steps[0][tensor], scale=size)
                least = max(noise, tolerance.floor(value.numel(), amp.precision.u))
                _expect_close(amp, f"{sized_case.name}: {tensor}", far, least)
    graphs = compiled_graphs() - before
    amp.observe(f"{case.name}/two sizes/graphs", graphs, kind="count")
    assert graphs == 1, f"two sizes of batch took {graphs} graphs with dynamic shapes"


def _expect_close(amp: SuiteAmp, what: str, far: float, noise: float) -> None:
    """Compare bitwise with eager on a CPU, elsewhere up to the order of sums."""
    bits = amp.device.type == "cpu" and TAKES_NOTHING_APART
    if bits or not far <= tolerance.WORST_DISTANCE * noise * amp.config.tolerance_scale:
        raise AmpFailure(
            f"{what}, compiled with dynamic shapes, is not that of eager on {amp.target.id}",
            label_before="eager",
            before=f"its own noise is {noise:.2g}",
            now=f"{far:.2g} from it, on torch {torch.__version__}",
            likely="a size is traced as a constant, or a cast is traced elsewhere",
        )


def test_inductor_has_what_it_needs(needs: Callable[[str], str]) -> None:
    """Name the missing tool: a C++ compiler on a CPU, Triton and a C compiler on a GPU."""
    needs("inductor")


def test_step_by_inductor(amp: SuiteAmp, needs: Callable[[str], str]) -> None:
    """Fused kernels round less often than eager's: no further from float64, and still low precision."""
    amp.check_compiled(mlp(), backend=needs("inductor"), fullgraph=True)


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", whole)
def test_step_by_inductor_of_each_network(amp: SuiteAmp, case: Case) -> None:
    amp.check_compiled(case, fullgraph=True, dynamic=False)


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", whole)
def test_step_by_inductor_of_each_network_with_dynamic_shapes(amp: SuiteAmp, case: Case) -> None:
    amp.check_compiled(case, fullgraph=True, dynamic=True)


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", whole)
def test_step_by_inductor_with_the_region_inside(amp: SuiteAmp, needs: Callable[[str], str], case: Case) -> None:
    _check(amp, case, Compilation(backend=needs("inductor"), fullgraph=True, region=Where.INSIDE))


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", wider)
def test_step_of_the_wider_zoo_as_dynamo_captures_it(amp: SuiteAmp, case: Case) -> None:
    """Compile into as many graphs as Dynamo needs."""
    amp.check_compiled(case, backend="eager")


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", wider_traced)
def test_step_of_the_wider_zoo(amp: SuiteAmp, case: Case) -> None:
    """Compile into as many graphs as AOTAutograd needs."""
    amp.check_compiled(case, backend="aot_eager")


@pytest.mark.amp_long
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("name", ["mlp", "decoder"])
@pytest.mark.amp(devices=["cuda"])
def test_step_in_each_mode(amp: SuiteAmp, needs: Callable[[str], str], name: str, mode: str) -> None:
    """CUDA graphs, and kernels chosen by timing: hundreds of them, compiled in parallel."""
    (case,) = (case for case in zoo() if case.name == name)
    compilation = Compilation(backend=needs("inductor"), mode=mode, fullgraph=True)
    with compile_workers(min(8, os.cpu_count() or 1)):
        _check(amp, case, compilation)
