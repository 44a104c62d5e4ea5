"""A training step of a case in its two passes, in float32, under autocast, and with autocast's casts made by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.nn.modules.rnn import RNNBase

from pytest_amp.cases import Case, Realised, expect_graph, expect_python, loss_of, named_tensors
from pytest_amp.devices.generators import seed_torch
from pytest_amp.failure import is_misuse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.hand_cast import hand_cast, rules_are_known
from pytest_amp.numerics.step import Region

__tracebackhide__ = is_misuse


@dataclass
class Passes:
    """A model and a batch on a device, and the two passes of a step on them. The optimizer's step is not one."""

    case: Case
    where: Conditions
    realised: Realised = field(init=False)

    def __post_init__(self) -> None:
        """Make the model and the batch, on the device."""
        realised = self.case.realise(seed=self.where.seed)
        expect_python(realised.model, case=self.case.name)  # a script keeps less from its second run on
        self.realised = realised.on(self.where.device.torch_device)

    def own(self) -> dict[str, torch.Tensor]:
        """What is there before a step, by name: parameters, buffers and the batch."""
        model = self.realised.model
        batch = {f"input.{name}" if name else "input": tensor for name, tensor in named_tensors(self.realised.batch)}
        return {**dict(model.named_parameters()), **dict(model.named_buffers()), **batch}

    def forward(self, region: Region) -> torch.Tensor:
        """The loss, computed within ``region`` after torch has been seeded, in float32 where it is low."""
        seed_torch(self.where.seed)
        with region():
            outputs = self.case.loss(self.realised.model, self.realised.batch)
        loss = loss_of(outputs)
        expect_graph(loss, case=self.case.name)
        return loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass of ``loss``, gradients made anew."""
        self.forget_gradients()
        torch.autograd.backward(loss)

    def forget_gradients(self) -> None:
        """No gradient is left, neither of parameters nor of the batch."""
        for tensor in self.own().values():
            tensor.grad = None

    def amp(self, *, cache: bool = True) -> Region:
        """Autocast's own region."""
        return lambda: self.where.device.autocast(self.where.precision.dtype, cache_enabled=cache)

    def by_hand(self, *, cache: bool = True) -> Region | None:
        """The same region with autocast's casts made by hand; None where that cannot be told.

        On a device whose rules nobody knows, and for recurrent layers on CUDA: autocast casts all of their weights
        into one buffer (aten/src/ATen/cudnn/AutocastRNN.cpp), where cuDNN copies weights cast by hand once more.
        """
        recurrent = any(isinstance(module, RNNBase) for module in self.realised.model.modules())
        on_cudnn = self.where.device.type == "cuda" and recurrent
        if on_cudnn or not rules_are_known(self.where.device.type):
            return None

        @contextlib.contextmanager
        def region() -> Iterator[None]:
            with self.amp(cache=cache)(), hand_cast(self.where.device.type):
                yield

        return region
