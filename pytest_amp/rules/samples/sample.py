"""Sample arguments of one call, and the factory of their values."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Sample:
    """The arguments of one call.

    ``undefined`` are the indices of results whose values are undefined and not compared, such as a workspace;
    ``reason`` says why.
    """

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    undefined: tuple[int, ...] = ()
    reason: str | None = None

    @classmethod
    def of(cls, *arguments: Any, **keywords: Any) -> Sample:
        """Return the sample of a call with these arguments."""
        return cls(arguments, keywords)

    def without(self, *undefined: int, reason: str) -> Sample:
        """Return the same call with the results ``undefined`` not compared."""
        return Sample(self.arguments, self.keywords, undefined, reason)


class Values:
    """Factory for the tensors of one operator's samples, with its own generator."""

    def __init__(self, name: str) -> None:
        """Seed the generator with the operator's ``name``: the values depend on nothing else."""
        self._generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(self, *shape: int) -> torch.Tensor:
        """Return normal float32 values."""
        return torch.randn(*shape, generator=self._generator)

    def uniform(self, *shape: int, low: float = 0.1, high: float = 0.9) -> torch.Tensor:
        """Return uniform float32 values between ``low`` and ``high``."""
        return torch.rand(*shape, generator=self._generator) * (high - low) + low

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        """Return int64 values below ``high``."""
        return torch.randint(high, shape, generator=self._generator)

    def signs(self, *shape: int) -> torch.Tensor:
        """Return int64 values 1 and -1, both of which occur."""
        return self.permutation(shape[0]).reshape(shape[0], *[1] * (len(shape) - 1)).expand(shape) % 2 * 2 - 1

    def permutation(self, size: int) -> torch.Tensor:
        """Return the int64 values below ``size`` in random order."""
        return torch.randperm(size, generator=self._generator)

    def positive_definite(self, size: int) -> torch.Tensor:
        """Return a well-conditioned symmetric matrix, which stays positive definite when its entries are rounded."""
        root = self.normal(size, size)
        return root @ root.T / size + torch.eye(size) * 1.5


Build = Callable[[Values], "Sample | list[Sample]"]
