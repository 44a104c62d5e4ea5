"""Noise of the size of low-precision rounding, which perturbs the companions of a float32 run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pytest_amp.numerics.errors import real_parts
from pytest_amp.precision import Precision

#: Perturbation of a companion, in unit roundoffs. A gradient is rounded about twelve times (weight, input and result of
#: three products, and the gradient of each result). If these roundings are independent, their sum is sqrt(12) = 3.5
#: times as large as one of them.
PERTURBATION = 4.0


def uniform_noise(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Return float32 values on the CPU, uniform in [-1, 1], from a generator of the CPU."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu").mul_(2).sub_(1)


class Noise:
    """Noise in step number ``step`` of the companion number ``companion``; see ``training.trajectory.run``."""

    def __init__(
        self, precision: Precision, parameters: list[torch.nn.Parameter], *, step: int, companion: int
    ) -> None:
        """Seed the noise with the numbers of the companion and of the step."""
        self.companion, self._parameters, self._size = companion, parameters, PERTURBATION * precision.u
        self._generator = torch.Generator().manual_seed(7919 * (companion + 1) + step)

    def add_to_gradients(self) -> None:
        """Add normal noise to each dense gradient, in proportion to its root mean square."""
        for p in self._parameters:
            if p.grad is not None and not p.grad.is_sparse:
                gradient = real_parts(p.grad)
                noise = torch.randn(gradient.shape, generator=self._generator).to(gradient.device, gradient.dtype)
                gradient.add_(noise * (self._size * gradient.square().mean().sqrt()))

    @contextmanager
    def on_weights(self) -> Iterator[None]:
        """Perturb the weights inside the block, and afterwards add their change to the unperturbed weights."""
        parameters = self._parameters
        unperturbed = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                weight = real_parts(p)
                noise = uniform_noise(weight.shape, self._generator)
                weight.mul_(1 + self._size * noise.to(weight.device, weight.dtype))
            perturbed = [p.detach().clone() for p in parameters]
        yield
        with torch.no_grad():
            for parameter, before, start in zip(parameters, unperturbed, perturbed, strict=True):
                parameter.copy_(before + (parameter - start))
