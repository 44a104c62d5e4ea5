"""``loss_parallel``: the loss of logits sharded by classes is float32, and so are its intermediate gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from .expectations import expect_near_exact, expect_ranks_agree, settings
from .models import SIZE, Tensors, batch, build, gradients, loss_in_one, realised
from .programs import dtype_of, full, low_dtype, on_cpu

ROWS, CLASSES, IGNORED = 24, 16, -100
REDUCTIONS = ("mean", "sum", "none")


def full_batch() -> Tensors:
    """Return logits that no lower dtype represents, far from zero: exponentials need their maximum subtracted."""
    generator = torch.Generator().manual_seed(5)
    logits = 40 + 8 * torch.randn(ROWS, CLASSES, generator=generator)
    targets = torch.arange(ROWS) % CLASSES
    targets[3] = IGNORED
    return {"logits": logits, "targets": targets}


def losses(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss with each reduction, of logits in ``logits``, in a region or not: values and gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh(rank.device.type, (rank.size,))
    batch = {name: value.to(rank.device) for name, value in full_batch().items()}
    results: dict[str, Any] = {}
    for reduction in REDUCTIONS:
        logits = distribute_tensor(batch["logits"].to(dtype_of(settings["logits"])), mesh, [Shard(1)]).requires_grad_()
        region: Any = rank.autocast(low_dtype(settings)) if settings["region"] else contextlib.nullcontext()
        with loss_parallel():
            with region:
                value = f.cross_entropy(logits, batch["targets"], reduction=reduction)
            torch.autograd.backward(value.sum())
        assert logits.grad is not None
        results[reduction] = on_cpu({"loss": value, "gradient": logits.grad})
    return results


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of a model whose last layer is split by classes, on the whole batch, with the loss of its parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    instance = realised(settings["seed"], rank.device)
    mesh = init_device_mesh(rank.device.type, (rank.size,))
    model: nn.Module = parallelize_module(instance.model, mesh, {"3": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        with rank.autocast(low_dtype(settings)):
            logits = model(instance.batch["inputs"])
            value = f.cross_entropy(logits.float(), instance.batch["targets"])
        torch.autograd.backward(value)
    return {
        "logits": dtype_name(logits.dtype),
        "loss": float(full(value.detach())),
        "gradients": on_cpu(gradients(model)),
    }


#: A logarithm of a sum of exponentials, and a mean, in float32.
NEAR = 2.0**-20
_CASES = {
    "float32": {"low": False, "region": False},
    "float32 in a region": {"low": False, "region": True},
    "low in a region": {"low": True, "region": True},
}


@pytest.mark.parametrize("case", _CASES)
def test_losses_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup, case: str) -> None:
    """Compare every reduction with float64: the loss is float32, a gradient is rounded once, to its logits' dtype.

    On CUDA the log-probabilities of low-precision logits are low-precision, in one process, too (``_LogSoftmax``).
    """
    arguments = _CASES[case]
    dtype = amp.dtype if arguments["low"] else torch.float32
    answers = ranks.ask(losses, settings(amp, logits=dtype_name(dtype), region=arguments["region"]))
    for reduction in REDUCTIONS:
        batch = full_batch()
        logits = batch["logits"].to(dtype).double().requires_grad_()
        narrow = dtype if amp.device.type == "cuda" and arguments["low"] else torch.float64
        log_probabilities: Any = _LogSoftmax.apply(logits, narrow)  # type: ignore[no-untyped-call]
        loss = f.nll_loss(log_probabilities, batch["targets"], reduction=reduction)
        torch.autograd.backward(loss.sum())
        assert logits.grad is not None
        rounded = torch.finfo(dtype).eps / 2 if arguments["low"] else 0.0
        for number, answer in enumerate(answers):
            results = answer[reduction]
            wrong = _unlike(results["loss"], loss.detach(), torch.float32, NEAR)
            wrong = wrong or _unlike(results["gradient"], logits.grad, dtype, NEAR + rounded)
            if wrong:
                raise AmpFailure(
                    f"loss_parallel of {dtype_name(dtype)} logits, {reduction}: rank {number} of {amp.target.id} has "
                    "a different loss or gradient than one process",
                    label_before="rule",
                    before=f"a float32 loss within {NEAR:.3g} of float64's, from log-probabilities in "
                    f"{dtype_name(narrow)}; a {dtype_name(dtype)} gradient",
                    now=wrong,
                    likely="the logits or their gradients are rounded, or a rank's classes are left out of the sum",
                )


class _LogSoftmax(torch.autograd.Function):
    """``log_softmax`` in float64, rounded to a dtype; the gradient is computed from the rounded result, as torch does.

    ``cross_entropy`` requests its logits' dtype of ``log_softmax`` (aten/src/ATen/native/LossNLL.cpp), and CUDA's
    autocast leaves a requested dtype alone (``fp32_set_opt_dtype`` in aten/src/ATen/autocast_mode.h); ``nll_loss`` is
    float32 by rule. The CPU's list has ``cross_entropy_loss`` as a whole.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        result = f.log_softmax(logits, -1).to(dtype).double()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (result,) = ctx.saved_tensors
        return gradient - result.exp() * gradient.sum(-1, keepdim=True), None


def _unlike(actual: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, most: float) -> str | None:
    """Describe an error relative to the largest value, which bounds the error of smaller values, too."""
    error = float((actual.double() - exact).abs().max() / exact.abs().max())
    return f"{dtype_name(actual.dtype)}, error {error:.3g}" if actual.dtype is not dtype or error > most else None


class _Split(nn.Module):
    """Reference in one process, the last product in two halves: backward adds two low-precision parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = build()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *first, last = self.layers.children()
        for layer in first:
            x = layer(x)
        assert isinstance(last, nn.Linear)
        halves = zip(last.weight.chunk(SIZE), last.bias.chunk(SIZE), strict=True)
        return torch.cat([f.linear(x, weight, bias) for weight, bias in halves], dim=-1)


def test_a_step_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Loss and gradients of a model with a split last layer are within the bound of the reference in halves."""
    answers = ranks.ask(step, settings(amp))
    expect_ranks_agree(amp, answers, "gradients", subject="loss_parallel")
    assert {answer["logits"] for answer in answers} == {amp.precision.dtype_name}
    gradients = {f"layers.{name}": value for name, value in answers[0]["gradients"].items()}
    case = Case("loss parallel", _Split, batch, loss_in_one)
    expect_near_exact(amp, case, gradients, loss=answers[0]["loss"], subject="loss_parallel")
