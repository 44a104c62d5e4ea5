"""CUDA graph trees under autocast: replays compute what eager computes, with current weights and the current region."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, loss_of, zoo
from pytest_amp.compiled import Compilation
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import predict, relative_error, run_step, tolerance
from pytest_amp.run.targets import Target
from pytest_amp.torch_private import cuda_graph_trees, skipped_cuda_graphs

from .programs import OTHER

pytestmark = pytest.mark.amp(devices=["cuda"])

#: The first call warms up, the second records, the remaining ones replay.
_CALLS = 5


def _cases(_target: Target) -> Iterator[object]:
    for case in zoo():
        if case.name in {"mlp", "cnn", "decoder"}:
            yield pytest.param(case, id=case.name, marks=pytest.mark.amp_long if case.name == "cnn" else ())


def _index(amp: SuiteAmp) -> int:
    index = amp.device.torch_device.index
    return torch.cuda.current_device() if index is None else index


@pytest.mark.amp_parametrize("case", _cases)
def test_replays_compute_what_eager_computes(amp: SuiteAmp, needs: Callable[[str], str], case: Case) -> None:
    """Compare outputs and gradients of five steps with eager's; the second records the graph, the rest replay it."""
    skipped = skipped_cuda_graphs()
    how = Compilation(backend=needs("inductor"), mode="reduce-overhead", fullgraph=True)
    compiled = how.case(case, amp.conditions)
    realised = case.realise(seed=amp.config.seed)
    prediction = predict(case, realised, amp.device, amp.precision, seed=amp.config.seed)
    exact, noise = prediction.exact.named(), prediction.noise
    instance = realised.on(amp.device.torch_device)
    for call in range(_CALLS):
        torch.compiler.cudagraph_mark_step_begin()
        instance.model.zero_grad()
        for tensor in instance.batch.values():
            tensor.grad = None
        step = run_step(
            compiled, instance, amp.conditions.region, seed=amp.config.seed, loss_scale=prediction.loss_scale
        ).named()
        for name, value in step.items():
            if name.startswith("buffer.") or name not in noise or not value.is_floating_point():
                continue  # running statistics continue from step to step
            far = relative_error(value, exact[name], scale=prediction.sizes[name])
            allowed = tolerance.allowed(noise[name], value.numel(), amp.precision.u, tolerance.CERTAIN)
            if not far <= allowed * amp.config.tolerance_scale:
                raise AmpFailure(
                    f"{case.name}: {name} of call {call} is {far:.3g} from float64, allowed are {allowed:.3g}",
                    label_before="exact",
                    before=f"rounding explains {noise[name]:.3g}",
                    now=f"reduce-overhead on torch {torch.__version__}, {amp.device.describe()}",
                    likely="the first call is eager, the second records a CUDA graph, the others replay it",
                )
    trees, refused = cuda_graph_trees(_index(amp)), skipped_cuda_graphs() - skipped
    amp.observe(f"{case.name}/reduce-overhead/skipped", refused, kind="count")
    assert trees > 0, "no CUDA graph was recorded"
    assert refused == 0, f"{refused} graphs were not put into CUDA graphs"


def test_a_replay_follows_the_region(amp: SuiteAmp, needs: Callable[[str], str]) -> None:
    """Call one callable in no region, in this dtype and in the other, repeatedly: each has its own graph and dtype."""
    layer = nn.Linear(64, 64).to(amp.device.torch_device)
    compiled = torch.compile(layer, backend=needs("inductor"), mode="reduce-overhead", fullgraph=True)
    batch = torch.randn(32, 64, device=amp.device.torch_device)
    with torch.no_grad():
        for _ in range(4):
            for dtype in (None, amp.dtype, OTHER[amp.dtype]):
                torch.compiler.cudagraph_mark_step_begin()
                with amp.autocast(dtype=dtype, enabled=dtype is not None):
                    actual, expected = compiled(batch).clone(), layer(batch)
                assert actual.dtype is (dtype or torch.float32)
                assert relative_error(actual, expected) <= tolerance.CERTAIN * amp.precision.u
    assert cuda_graph_trees(_index(amp)) > 0, "no CUDA graph was recorded"


def test_a_replay_casts_the_weights_of_today(amp: SuiteAmp, needs: Callable[[str], str]) -> None:
    """Casts of weights are in the graph: after each step of an optimizer a replay computes with the updated weights."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(amp.device.torch_device)
    compiled = torch.compile(model, backend=needs("inductor"), mode="reduce-overhead", fullgraph=True)
    batch = torch.randn(32, 64, device=amp.device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler(amp.device.type, init_scale=2.0**8)
    for call in range(_CALLS):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        with amp.autocast():
            actual = compiled(batch)
            loss = loss_of(actual.float().square().mean())
        copy = actual.detach().clone()
        with amp.autocast(), torch.no_grad():
            expected = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        # Two consecutive roundings of one product each.
        bound = 2 * tolerance.CERTAIN * amp.precision.u * amp.config.tolerance_scale
        assert relative_error(copy, expected) <= bound, f"call {call} does not compute with the weights of eager"
    assert cuda_graph_trees(_index(amp)) > 0, "no CUDA graph was recorded"
