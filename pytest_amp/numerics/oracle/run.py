"""Run a case's training step on virtual tensors: exactly, or with the predicted rounding of mixed precision."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from pytest_amp import torch_private
from pytest_amp.cases import Case, Realised, passes
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.oracle.virtual import CannotFollow, Predictor, values
from pytest_amp.numerics.step import Region, Step, run_step
from pytest_amp.text.quoted import quoted


@dataclass(frozen=True)
class Wide:
    """Step whose tensors are float64, and the dtypes that they represent, by name."""

    step: Step
    dtypes: Mapping[str, torch.dtype]


def run_virtual(  # noqa: PLR0913  # keywords of one run
    case: Case, realised: Realised, region: Region, predictor: Predictor, *, seed: int, loss_scale: float = 1.0
) -> Wide:
    """Run the step of ``case`` with float64 kernels; ``realised`` is changed: pass a copy.

    The case must run on real tensors. Raises CannotFollow, which names the operator without float64, or the last
    operator before the model used a feature that virtual tensors do not have.
    """
    predictor = replace(predictor, draws=realised.draws if isinstance(realised.draws, Draws) else None)
    instance = predictor.virtualised(realised)
    try:
        torch_private.memory_was_taken()
        with predictor.on():
            step = run_step(case, instance, region, seed=seed, loss_scale=loss_scale, replay=False)
    except Exception as error:  # the model runs on real tensors: any exception here is due to virtual ones
        if passes(error):
            raise
        after = f", after {predictor.last[0]}" if predictor.last else ""
        raise CannotFollow(
            f"the rounding oracle cannot follow {case.name}{after}",
            now=quoted(error),
            likely="it asks a tensor for its memory, or hands it to code that is not torch's",
        ) from error
    if torch_private.memory_was_taken():
        predictor.unmodelled.add("code that takes the memory of tensors")
    dtypes = {
        **{f"output.{name}": value.dtype for name, value in step.outputs.items()},
        **{name: value.dtype for name, value in step.gradients.items() if value is not None},
        **{f"input.{name}" if name else "input": v.dtype for name, v in step.inputs.items() if v is not None},
        **{f"buffer.{name}": value.dtype for name, value in step.buffers.items()},
    }
    return Wide(_with_values(step), dtypes)


def _with_values(step: Step) -> Step:
    return Step(
        outputs={name: values(value) for name, value in step.outputs.items()},
        gradients={name: None if value is None else values(value) for name, value in step.gradients.items()},
        inputs={name: None if value is None else values(value) for name, value in step.inputs.items()},
        buffers={name: values(value) for name, value in step.buffers.items()},
        loss_scale=step.loss_scale,
    )


def run_exact(case: Case, realised: Realised, device_type: str, *, seed: int) -> Wide:
    """Run the float32 program of ``case`` without autocast and without any rounding."""
    return run_virtual(case, realised, contextlib.nullcontext, Predictor(device_type, rounds=False), seed=seed)
