"""The model that each rank and the test process compute, and the manual reference steps."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.cases import Case, Realised

SIZE = 2
WIDTH, HIDDEN, CLASSES, ROWS = 32, 64, 16, 24
#: Added to a rank's number once its buffers have changed.
LATER = 10

Region = Callable[[], AbstractContextManager[Any]]
Tensors = dict[str, torch.Tensor]


def build() -> nn.Module:
    """Return the model. Shapes: (rows, width) to (rows, classes)."""
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES))


def batch() -> Tensors:
    """Return the rows of all ranks."""
    return {"inputs": torch.randn(ROWS, WIDTH), "targets": torch.arange(ROWS) % CLASSES}


def loss(model: nn.Module, rows: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the mean over rows, of float32 logits: the mean of the ranks' losses is that of the whole batch."""
    logits = model(rows["inputs"])
    return {"loss": f.cross_entropy(logits.float(), rows["targets"]), "logits": logits}


def whole(name: str) -> Case:
    """Return the case of one process that has all rows."""
    return Case(name, build, batch, loss_in_one)


def loss_in_one(model: nn.Module, rows: Tensors) -> Tensors:
    """Return the loss without casting the logits, so that the case runs in float64, too."""
    logits = model(rows["inputs"])
    return {"loss": f.cross_entropy(logits, rows["targets"]), "logits": logits}


class Keeping(nn.Module):
    """Layer with a buffer of each kind, whose values are those of one rank."""

    def __init__(self, seed: int, number: int) -> None:
        """Fill buffers with the values of ``state_of``."""
        super().__init__()
        self.weight = nn.Parameter(state_of(seed, number)["weight"])
        for name, value in state_of(seed, number).items():
            if name != "weight":
                self.register_buffer(name, value)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Shapes: (rows, width) to (rows, hidden)."""
        return f.linear(rows, self.weight)


def state_of(seed: int, number: int) -> Tensors:
    """Return values of one rank for each dtype of buffers; they are not representable in a lower precision."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    drawn = {
        name: torch.randn(HIDDEN, dtype=torch.float64, generator=generator).to(dtype)
        for name, dtype in (("wide", torch.float32), ("wider", torch.float64), ("low", torch.float16))
    }
    counted = torch.randint(2**40, (HIDDEN,), generator=generator)
    weight = torch.randn(HIDDEN, WIDTH, generator=generator)
    return {"weight": weight, **drawn, "counted": counted, "asked": counted % 2 == 0}


def realised(seed: int, device: torch.device | str) -> Realised:
    """Return the same weights and rows in every process."""
    return Case("rows", build, batch, loss).realise(seed=seed).on(device)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Use kernels with a fixed order of sums, where torch has them, so that two processes have the same bits."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an operator without such a kernel warns
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode=before[0], warn_only=before[1])


def rows_of(number: int, rows: Mapping[str, torch.Tensor]) -> Tensors:
    """Return a rank's share of the batch."""
    share = ROWS // SIZE
    return {name: value[number * share : (number + 1) * share] for name, value in rows.items()}


def gradients(model: nn.Module) -> Tensors:
    """Return gradients by name, unchanged, without the prefixes of wrappers."""
    return {plain(name): p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def plain(name: str) -> str:
    """Return a parameter's name without the prefixes of wrappers."""
    for prefix in ("module.", "_fsdp_wrapped_module.", "_orig_mod."):
        name = name.replace(prefix, "")
    return name


def backward(model: nn.Module, rows: Mapping[str, torch.Tensor], region: Region, *, scale: float = 1.0) -> Tensors:
    """Run forward in ``region`` and backward outside of it; return the outputs. Gradients are accumulated."""
    with region():
        outputs = loss(model, rows)
    torch.autograd.backward(outputs["loss"] * scale)
    return {name: value.detach() for name, value in outputs.items()}


def evaluated(model: nn.Module, rows: Mapping[str, torch.Tensor], region: Region) -> Tensors:
    """Return the logits of evaluation in each grad mode; the model is in training mode again afterwards."""
    outputs: Tensors = {}
    model.eval()
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode(), region():
            outputs[mode.__name__] = model(rows["inputs"])
    model.train()
    return {name: value.detach().clone() for name, value in outputs.items()}


def manual_gradients(
    seed: int,
    device: torch.device,
    region: Region,
    *,
    dtype: torch.dtype | None = None,
    output: torch.dtype | None = None,
) -> list[Tensors]:
    """Return the gradients of each rank's rows, computed one after the other in this process by manual casts.

    With ``dtype``, weights and inputs are cast to it beforehand, as policies of parameters do. With ``output``, each
    linear layer returns that dtype and casts its input to ``dtype``, as units with a dtype for outputs do.
    """
    outputs = []
    for number in range(SIZE):
        whole_batch = realised(seed, device)
        model, rows = whole_batch.model, rows_of(number, whole_batch.batch)
        if dtype is not None:
            model = copy.deepcopy(model).to(dtype)
            rows["inputs"] = rows["inputs"].to(dtype)
        if output is not None:
            _cast_outputs(model, dtype or torch.float32, output)
        backward(model, rows, region)
        outputs.append(gradients(model))
    return outputs


def _cast_outputs(model: nn.Module, dtype: torch.dtype, output: torch.dtype) -> None:
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _layer, args: (args[0].to(dtype),))
            layer.register_forward_hook(lambda _layer, _args, result: result.to(output))


def mean(parts: list[Tensors], dtype: torch.dtype = torch.float32) -> Tensors:
    """Return the mean over ranks, each divided first and then added, in ``dtype``; float32 in the end."""
    divided = [{name: value.to(dtype) / SIZE for name, value in part.items()} for part in parts]
    return {name: (divided[0][name] + divided[1][name]).float() for name in divided[0]}
