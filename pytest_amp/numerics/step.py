"""One training step of a case, forward and backward, and all tensors that it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch

from pytest_amp.cases import (
    Case,
    Realised,
    expect_graph,
    in_one_line,
    loss_of,
    named_buffers,
    named_tensors,
    outputs_by_name,
    passes,
    seeded,
)
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.errors import dense
from pytest_amp.numerics.reasons import low_parameters
from pytest_amp.numerics.widened import float64_in_region, widened
from pytest_amp.precision.float32 import float32_precision

__tracebackhide__ = is_usage_error


@dataclass
class StepCount:
    """Number of steps: forward and backward passes on real or virtual tensors."""

    steps: int = 0


_COUNTS: list[StepCount] = []


@contextlib.contextmanager
def counted() -> Iterator[StepCount]:
    """Count the steps that run inside the block, in any thread, as the cost of a check."""
    count = StepCount()
    _COUNTS.append(count)
    try:
        yield count
    finally:
        _COUNTS.remove(count)


#: Function that returns the context of a forward pass: a region of autocast, of manual casts, or none.
Region = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Step:
    """Results of one step, by name.

    ``outputs`` are the results of the loss function, ``gradients`` the gradients of the parameters (None without one),
    ``inputs`` the gradients of the batch's tensors that require one, ``buffers`` the module's buffers after the step.
    Gradients are those of the loss times ``loss_scale``, a power of two. Sparse tensors are dense here.
    """

    outputs: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor | None]
    inputs: Mapping[str, torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor]
    loss_scale: float

    def named(self) -> dict[str, torch.Tensor]:
        """Return all tensors by their names in observations, gradients without the loss scale.

        A gradient has the name of its parameter; other names begin with ``output.``, ``input.`` or ``buffer.``.
        """
        return self._named(self.loss_scale)

    def as_left(self) -> dict[str, torch.Tensor]:
        """Return all tensors as ``named`` does, but with scaled gradients, as the backward pass computed them."""
        return self._named(1.0)

    def _named(self, scale: float) -> dict[str, torch.Tensor]:
        gradients = {**self.gradients, **{_input(name): value for name, value in self.inputs.items()}}
        present = {name: value for name, value in gradients.items() if value is not None}
        if scale != 1.0:  # a division copies, and most steps have no scale
            present = {name: value / scale for name, value in present.items()}
        return {
            **{f"output.{name}": value for name, value in self.outputs.items()},
            **present,
            **{f"buffer.{name}": value for name, value in self.buffers.items()},
        }


def in_words(name: str) -> str:
    """Return the name in failures of a tensor of ``Step.named``."""
    role, _, rest = name.partition(".")
    words = {"output": "output", "buffer": "buffer", "input": "the gradient of input"}
    return f"{words[role]} {rest}" if role in words else f"the gradient of {name}"


def run_step(  # noqa: PLR0913  # keywords of one step
    case: Case, realised: Realised, region: Region, *, seed: int, loss_scale: float = 1.0, replay: bool = True
) -> Step:
    """Run forward inside ``region`` and backward outside of it, on a model without gradients.

    torch, numpy and Python's own generator are seeded before the forward pass. With ``replay`` the step uses the
    recorded random numbers of ``realised``, if any. float32 arithmetic is IEEE throughout, not TF32. Raises
    AmpUsageError, which is a RuntimeError, too, for a loss without a graph.
    """
    for count in _COUNTS:
        count.steps += 1
    model, batch, draws = realised.model, realised.batch, realised.draws
    with seeded(seed), float32_precision("ieee"), contextlib.ExitStack() as stack:
        if draws is not None:
            stack.enter_context(draws.scope())
            if replay:
                stack.enter_context(draws.replaying())
        with region():
            outputs = case.loss(model, batch)
        loss = loss_of(outputs)
        expect_graph(loss, case=case.name)
        # As in GradScaler, the scaled loss is float32 if the loss is low-precision.
        torch.autograd.backward(loss.to(torch.promote_types(loss.dtype, torch.float32)) * loss_scale)
    return Step(
        outputs={name: dense(value.detach()) for name, value in outputs_by_name(outputs).items()},
        gradients={name: _dense(value.grad) for name, value in model.named_parameters() if value.requires_grad},
        inputs={name: _dense(value.grad) for name, value in named_tensors(batch) if value.requires_grad},
        buffers={name: dense(buffer) for name, buffer in named_buffers(model).items()},
        loss_scale=loss_scale,
    )


class DoesNotRun(AmpFailure):
    """Failure of a case whose step raises an exception even without autocast."""


def does_not_run(case: Case, error: Exception, model: torch.nn.Module | None = None) -> DoesNotRun:
    """Return the failure for ``error``, which a step of ``case`` has raised without autocast, on ``model`` if known."""
    low = None if model is None else low_parameters(model)
    return DoesNotRun(
        f"{case.name} does not run in float32, without autocast",
        label_before="expected",
        before="a step that runs in float32: mixed precision is compared with it",
        now=f"{in_one_line(error)}, on torch {torch.__version__}",
        likely="the model, its batch or its loss: nothing of mixed precision has begun"
        if low is None
        else f"low-precision parameters ({low}): autocast itself casts float32 parameters, and no check has begun",
    )


def run_float32(case: Case, realised: Realised, *, seed: int) -> Step:
    """Run the step without autocast, or on a wider copy if the case runs only inside a region.

    Raises DoesNotRun, which names the line of user code.
    """
    try:
        return run_step(case, realised, contextlib.nullcontext, seed=seed)
    except Exception as error:
        if passes(error):
            raise
        step = _of_wider_copy(case, realised, seed)
        if step is None:
            raise does_not_run(case, error, realised.model) from None
        return step


def _of_wider_copy(case: Case, realised: Realised, seed: int) -> Step | None:
    """Run the step on float32 copies of low-precision tensors, else on float64 copies in a region, else return None."""
    tensors = (*realised.model.parameters(), *(tensor for _, tensor in named_tensors(realised.batch)))
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    regions: tuple[tuple[Case, torch.dtype | None, Region], ...] = (
        (widened(case), None, contextlib.nullcontext),
        (case, torch.float64, lambda: float64_in_region(device.type)),
    )
    for copy, dtype, region in regions:
        with contextlib.suppress(Exception):
            wide = replace(copy.realise(seed=seed).on(device, dtype), draws=realised.draws)
            return run_step(copy, wide, region, seed=seed)
    return None


def _dense(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else dense(gradient)


def _input(name: str) -> str:
    return f"input.{name}" if name else "input"
