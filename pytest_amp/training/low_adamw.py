"""AdamW with weights and moments in bfloat16 or float32, and roundings that preserve small updates."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import torch

_BETA1, _BETA2, _EPSILON, _DECAY = 0.9, 0.999, 1e-8, 0.01


class Rounding(enum.Enum):
    """Rounding of a float32 result to a bfloat16 weight.

    ``NEAREST``: to nearest even. ``STOCHASTIC``: up or down with the probability that makes the mean exact. ``KAHAN``:
    to nearest, and the rounding error is stored in a second bfloat16 tensor and added to the next update (Kahan 1965).
    """

    NEAREST = "nearest"
    STOCHASTIC = "stochastic"
    KAHAN = "kahan"


@dataclass(frozen=True)
class Storage:
    """Storage format of AdamW: the dtypes of the weights and of both moments, and the rounding of the weights."""

    name: str
    weights: torch.dtype = torch.float32
    first: torch.dtype = torch.float32
    second: torch.dtype = torch.float32
    rounding: Rounding = Rounding.NEAREST


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Round float32 ``values`` to bfloat16 stochastically: add 16 random bits, then truncate.

    ``generator`` is a CPU generator, so that the bits are the same on every device.
    """
    bits = values.view(torch.int32)
    noise = torch.randint(0, 2**16, bits.shape, dtype=torch.int32, generator=generator).to(bits.device)
    return ((bits + noise) & -(2**16)).view(torch.float32).to(torch.bfloat16)


class LowAdamW:
    """AdamW (Loshchilov and Hutter 2019) in float32 arithmetic, with the tensors of a ``Storage`` between steps."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], storage: Storage, *, seed: int = 0) -> None:
        """Create the state; the parameters must have the storage's dtype."""
        self.parameters, self.storage = list(parameters), storage
        self._first = [torch.zeros_like(p, dtype=storage.first) for p in self.parameters]
        self._second = [torch.zeros_like(p, dtype=storage.second) for p in self.parameters]
        self._lost = [torch.zeros_like(p, dtype=torch.bfloat16) for p in self.parameters]
        self._generator = torch.Generator().manual_seed(seed)
        self._count = 0

    @torch.no_grad()
    def step(self, rate: float) -> tuple[int, int]:
        """Take one step with the learning rate ``rate``.

        Returns the number of weights with a nonzero update, and the number of these updates that changed no stored
        value: neither the weight nor, with Kahan summation, its stored rounding error.
        """
        self._count += 1
        counts: list[torch.Tensor] = []  # read once, at the end: every read synchronizes
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            update = self._update(index, parameter.grad.float(), parameter.float(), rate)
            before, owed = parameter.clone(), self._lost[index].clone()
            self._add(index, parameter, update)
            moved = update != 0
            stayed = moved & (parameter == before) & (self._lost[index] == owed)
            counts.append(torch.stack([moved.sum(), stayed.sum()]))
        if not counts:
            return 0, 0
        counted, unchanged = torch.stack(counts).sum(0).tolist()
        return counted, unchanged

    def _update(self, index: int, gradient: torch.Tensor, weight: torch.Tensor, rate: float) -> torch.Tensor:
        first = self._first[index].float().lerp(gradient, 1 - _BETA1)
        second = self._second[index].float().lerp(gradient.square(), 1 - _BETA2)
        self._first[index].copy_(first)
        self._second[index].copy_(second)
        # Use the stored values, as torch's own optimizers do.
        first, second = self._first[index].float(), self._second[index].float()
        mean = first / (1 - _BETA1**self._count)
        size = (second / (1 - _BETA2**self._count)).sqrt() + _EPSILON
        return -rate * (mean / size + _DECAY * weight)

    def _add(self, index: int, parameter: torch.nn.Parameter, update: torch.Tensor) -> None:
        rounding = self.storage.rounding
        if rounding is Rounding.STOCHASTIC:
            parameter.copy_(round_stochastically(parameter.float() + update, self._generator))
        elif rounding is Rounding.KAHAN:
            exact = parameter.float() + (update + self._lost[index].float())
            parameter.copy_(exact)
            self._lost[index].copy_(exact - parameter.float())
        else:
            parameter.copy_(parameter.float() + update)
