"""Casts in fused kernels, written by users or inserted by autocast: they round where eager rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, zoo
from pytest_amp.compiled import Compilation, eager_and_compiled
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import predict, relative_error, tolerance
from pytest_amp.run.targets import Target

_EMULATED = (("emulate_precision_casts", True),)


def _rounded_to(dtype: torch.dtype) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that casts a product to ``dtype`` and back, and continues in float32."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rounded = (x @ w).to(dtype).float()
        return rounded * torch.sigmoid(rounded)

    return function


def _options(emulated: bool) -> dict[str, Any] | None:  # noqa: FBT001  # a parameter of the tests
    return dict(_EMULATED) if emulated else None


@pytest.mark.parametrize("emulated", [False, True], ids=["default", "emulated"])
def test_a_round_trip_by_hand_rounds(amp: SuiteAmp, needs: Callable[[str], str], *, emulated: bool) -> None:
    """An explicit ``.to(low).float()`` rounds in fused kernels as in eager, also with ``emulate_precision_casts``."""
    function, exact = _rounded_to(amp.dtype), _rounded_to(torch.float32)
    x, w = (torch.randn(64, 64, device=amp.device.torch_device) for _ in range(2))
    compiled = torch.compile(function, backend=needs("inductor"), fullgraph=True, options=_options(emulated))
    far, rounding = relative_error(compiled(x, w), function(x, w)), relative_error(function(x, w), exact(x, w))
    # The remaining difference is float32 rounding: sums of 64 products in a different order.
    allowed = tolerance.LEAST * rounding
    if not far <= allowed:
        raise AmpFailure(
            f"an explicit round trip to {amp.dtype} is dropped by inductor on {amp.target.id}",
            label_before="eager",
            before=f"rounded; half of what that makes is {allowed:.2g}",
            now=f"{far:.2g} from eager, on torch {torch.__version__}",
            likely="fusion removes a cast to a low dtype and back",
        )


def _networks(_target: Target) -> Iterator[object]:
    """Yield three networks of the zoo."""
    for case in zoo():
        if case.name in {"mlp", "cnn", "decoder"}:
            yield pytest.param(case, id=case.name)


@pytest.mark.amp_long
@pytest.mark.amp_parametrize("case", _networks)
def test_emulated_casts_round_as_eager_does(amp: SuiteAmp, needs: Callable[[str], str], case: Case) -> None:
    """With ``emulate_precision_casts`` fused kernels round, too: their median error is at least half of eager's."""
    how = Compilation(backend=needs("inductor"), fullgraph=True, options=_EMULATED)
    prediction = predict(case, case.realise(seed=amp.config.seed), amp.device, amp.precision, seed=amp.config.seed)
    eager, compiled_run, _ = eager_and_compiled(case, how, amp.conditions, loss_scale=prediction.loss_scale)
    exact, actual, shares = prediction.exact.named(), compiled_run.named(), []
    for tensor, value in eager.named().items():
        if value.numel() < tolerance.ENOUGH or tensor not in prediction.noise or not value.is_floating_point():
            continue
        size = prediction.sizes[tensor]
        eager_error, other = (
            relative_error(tensors[tensor], exact[tensor], scale=size) for tensors in (eager.named(), actual)
        )
        assert other <= tolerance.CERTAIN * max(eager_error, prediction.noise[tensor]), (
            f"{case.name}: {tensor} is {other:.2g} from float64 with emulated casts, in eager {eager_error:.2g}"
        )
        shares.append(other / eager_error)
    assert statistics.median(shares) >= tolerance.LEAST


def test_casts_of_autocast_survive_fusion(amp: SuiteAmp, needs: Callable[[str], str]) -> None:
    """A float32 operator that is fused with a product reads the product's rounded low-precision values."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = x @ w
        return low, low.float() * 3

    device = amp.device.torch_device
    x, w = torch.randn(16, 32, device=device), torch.randn(32, 16, device=device)
    with amp.autocast():
        actual = torch.compile(function, backend=needs("inductor"), fullgraph=True)(x, w)
        expected = function(x, w)
    assert [value.dtype for value in actual] == [value.dtype for value in expected] == [amp.dtype, torch.float32]
    assert torch.equal(actual[0].float() * 3, actual[1]), "float32 was computed from a product that was not rounded"
