"""The two passes of a case's training step, in float32, under autocast, and with manual casts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.nn.modules.rnn import RNNBase

from pytest_amp.cases import Case, Realised, expect_graph, expect_python, loss_of, named_tensors, seeded
from pytest_amp.failure import is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.manual_cast_mode import manual_casts, rules_are_known
from pytest_amp.numerics.step import Region

__tracebackhide__ = is_usage_error


@dataclass
class Passes:
    """A model and a batch on a device, and the forward and backward pass of a step, without the optimizer's step."""

    case: Case
    conditions: Conditions
    realised: Realised = field(init=False)

    def __post_init__(self) -> None:
        """Build the model and the batch on the device."""
        realised = self.case.realise(seed=self.conditions.seed)
        expect_python(realised.model, case=self.case.name)  # a TorchScript model saves less from its second run on
        self.realised = realised.on(self.conditions.device.torch_device)

    def own(self) -> dict[str, torch.Tensor]:
        """Return the tensors that exist before a step, by name: parameters, buffers and the batch."""
        model = self.realised.model
        batch = {f"input.{name}" if name else "input": tensor for name, tensor in named_tensors(self.realised.batch)}
        return {**dict(model.named_parameters()), **dict(model.named_buffers()), **batch}

    def forward(self, region: Region) -> torch.Tensor:
        """Seed all generators and compute the loss inside ``region``; a low-precision loss is cast to float32."""
        with seeded(self.conditions.seed), region():
            outputs = self.case.loss(self.realised.model, self.realised.batch)
        loss = loss_of(outputs)
        expect_graph(loss, case=self.case.name)
        return loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of ``loss`` with new gradients."""
        self.forget_gradients()
        torch.autograd.backward(loss)

    def forget_gradients(self) -> None:
        """Drop the gradients of parameters and of the batch."""
        for tensor in self.own().values():
            tensor.grad = None

    def amp(self, *, cache: bool = True) -> Region:
        """Return autocast's region."""
        return lambda: self.conditions.device.autocast(self.conditions.precision.dtype, cache_enabled=cache)

    def manual_region(self, *, cache: bool = True) -> Region | None:
        """Return the same region with manual casts; None if they do not predict autocast's memory.

        That is on a device type without known rules, and for recurrent layers on CUDA: autocast casts all of their
        weights into one buffer (aten/src/ATen/cudnn/AutocastRNN.cpp), while cuDNN copies manually cast weights once
        more.
        """
        recurrent = any(isinstance(module, RNNBase) for module in self.realised.model.modules())
        on_cudnn = self.conditions.device.type == "cuda" and recurrent
        if on_cudnn or not rules_are_known(self.conditions.device.type):
            return None

        @contextlib.contextmanager
        def region() -> Iterator[None]:
            with self.amp(cache=cache)(), manual_casts(self.conditions.device.type):
                yield

        return region
