"""A policy's casts at a module's boundary: inputs in every form, outputs in every container, gradients of inputs."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup
from pytest_amp.failure import AmpFailure

from . import ranks_inputs
from .expectations import needs_streams, settings
from .policies import POLICIES

UNITS = pytest.mark.parametrize("unit", ["FSDP1", "FSDP2"])
INSIDE = pytest.mark.parametrize("inside", [False, True], ids=["root", "inside another"])


def _settings(amp: SuiteAmp, unit: str, **more: object) -> dict[str, object]:
    if unit == "FSDP2":
        needs_streams(amp)
    policy = {name: dtype for name, dtype in POLICIES["low, reduced in float32"].requested(amp).items() if dtype}
    return settings(amp, unit=unit, **{"policy": policy, **more})


@UNITS
@INSIDE
def test_inputs_are_cast_wherever_they_are(amp: SuiteAmp, ranks: RankGroup, unit: str, *, inside: bool) -> None:
    """Inputs by position or keyword, in a list, dictionary or dataclass are rounded once; gradients are float32.

    In pytorch/pytorch#153077 a dataclass was left out. Inputs that are not floating-point stay unchanged.
    """
    for number, answer in enumerate(ranks.ask(ranks_inputs.takes, _settings(amp, unit, inside=inside))):
        expected = answer["given"].to(amp.dtype)
        for form, results in answer["forms"].items():
            wrong = _unlike(results, expected, answer["gradient"])
            if wrong:
                raise AmpFailure(
                    f"{unit} on rank {number} of {amp.target.id}: an input passed as {form} is not cast",
                    label_before="rule",
                    before=f"the module sees {amp.precision.dtype_name}, rounded once; the input's gradient is float32",
                    now=wrong,
                    likely="inputs of one form are ignored: keywords, or the items of a container",
                )


def _unlike(results: dict[str, object], expected: torch.Tensor, gradient: torch.Tensor) -> str | None:
    inputs, returned = results["seen"], results["gradient"]
    assert isinstance(inputs, list)
    (floating,) = (tensor for tensor in inputs if tensor.is_floating_point())
    if any(tensor.dtype is not torch.int64 for tensor in inputs if not tensor.is_floating_point()):
        return "its integers are cast"
    if floating.dtype is not expected.dtype or not torch.equal(floating, expected):
        return f"it sees {floating.dtype}"
    if not isinstance(returned, torch.Tensor):
        return "the input gets no gradient"
    if returned.dtype is not torch.float32 or not torch.equal(returned, gradient):
        return f"the gradient of the input differs, {returned.dtype}"
    return None


@UNITS
def test_inputs_stay_as_they_are_where_that_is_asked(amp: SuiteAmp, ranks: RankGroup, unit: str) -> None:
    """``cast_forward_inputs=False``: the module receives float32, in every form."""
    for answer in ranks.ask(ranks_inputs.takes, _settings(amp, unit, cast=False)):
        for form, results in answer["forms"].items():
            (floating,) = (tensor for tensor in results["seen"] if tensor.is_floating_point())
            assert floating.dtype is torch.float32, f"{form} is cast"
            assert torch.equal(floating, answer["given"])


@INSIDE
def test_outputs_are_cast_wherever_they_are(amp: SuiteAmp, ranks: RankGroup, *, inside: bool) -> None:
    """``output_dtype`` casts every floating-point tensor of the output, and nothing else."""
    policy = POLICIES["low, reduced in float32, output float32"].requested(amp)
    for answer in ranks.ask(ranks_inputs.returns, _settings(amp, "FSDP2", policy=policy, inside=inside)):
        for container, dtypes in answer.items():
            assert {dtype for dtype in dtypes if dtype != "int64"} == {"float32"}, f"{container}: {dtypes}"
