"""Operator call in float64 arithmetic, with the roundings that the kernel of the real dtypes makes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_amp import torch_private

#: The wide dtype of complex (True) and real (False) values.
WIDE = {True: torch.complex128, False: torch.float64}
#: The 16-bit dtypes, in which kernels may compute or accumulate.
LOW = (torch.bfloat16, torch.float16)


#: Tolerance of float32 results summed in another order: 64 roundings of the element or, if larger, of a typical one.
FLOAT32_FLIPS = 2.0**-18


def flips(values: torch.Tensor) -> torch.Tensor:
    """Return the allowed float32 error of each of ``values``: ``FLOAT32_FLIPS``."""
    typical = float(torch.linalg.vector_norm(values.nan_to_num(0.0, 0.0, 0.0))) / max(values.numel(), 1) ** 0.5
    return FLOAT32_FLIPS * values.abs().clamp_min(typical)


def _near(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    wide = actual.to(exact.dtype)
    return torch.where((wide - exact).abs() <= flips(exact), wide, exact)


#: The relative L2 distance within which a decomposition agrees with a float32 kernel.
_SAME = 1e-3


def _agree(exact: list[Any], narrow: list[Any]) -> bool:
    """Return whether two lists of results have the same shapes and, up to float32's rounding, the same values."""
    if len(exact) != len(narrow):
        return False
    for a, b in zip(exact, narrow, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a is not b and a != b:
                return False
            continue
        if a.shape != b.shape or is_real(a) != is_real(b):
            return False
        if is_real(a) and float((a - b).norm()) > _SAME * float(b.norm()):
            return False
    return True


def is_real(value: object) -> bool:
    """Return whether ``value`` is a floating or complex tensor, whose values are rounded."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``tensor`` in float64, or in complex128."""
    return tensor.detach().to(WIDE[tensor.is_complex()], copy=True)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round ``values`` to ``dtype`` and convert them back, through float32, in which kernels accumulate."""
    return values.to(dtype).to(values.dtype)


def met(result: torch.Tensor, once: torch.Tensor) -> bool:
    """Return whether updates collided: ``result`` differs from ``once``, which was rounded only at the end."""
    return not torch.equal(result, once)


@dataclass(frozen=True)
class Operation:
    """Operator call with float64 or complex128 arguments, and the dtypes that they represent.

    ``given`` and ``returned`` are the dtypes of the flattened arguments and results, and None for values other than
    floating and complex tensors. If ``rounds`` is false, nothing is rounded.
    """

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[torch.dtype | None, ...]
    returned: tuple[torch.dtype | None, ...]
    device_type: str
    rounds: bool = True

    @property
    def name(self) -> str:
        """The qualified name of the overload: ``aten::addmm``."""
        return str(self.overload.name())

    def low(self, values: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Round intermediate ``values`` to ``dtype``, as a kernel that stores them does."""
        return rounded(values, dtype) if self.rounds and dtype is not None else values

    def low_number(self, number: float) -> float:
        """Round a factor to the dtype of the first result."""
        return float(self.low(torch.tensor(float(number), dtype=WIDE[False]), self.returned[0]))

    def argument(self, index: int, name: str) -> Any:
        """Return an argument by index or by name; None if it is missing."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name)

    def unwritten(self) -> Operation:
        """Return the operation on copies of the arguments that it writes to, which keep their values."""
        written = torch_private.written_arguments(self.overload)
        if not written:
            return self
        names = torch_private.arguments_of(self.overload)
        named = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        copies = {name: named[name].clone() for name in written if isinstance(named.get(name), torch.Tensor)}
        args = tuple(copies.get(name, arg) for name, arg in zip(names, self.args, strict=False))
        return replace(self, args=args, kwargs={name: copies.get(name, arg) for name, arg in self.kwargs.items()})

    def once(self) -> list[Any]:
        """Return the flat results of the float64 kernel, each rounded once at the end."""
        results = torch_private.flat(torch_private.call_overload(self.overload, self.args, self.kwargs))[0]
        return self.finished(results)

    def stand_in(self) -> list[Any]:
        """Return the flat results, in float64, of an operator that has neither a float64 kernel nor a formula.

        They are computed by its decomposition, by its float32 kernel or, if it has neither, by the kernel of the real
        dtypes. The secondary results of a decomposition may differ from the kernel's, as in torch's decompositions of
        attention. If there is a float32 kernel, a decomposition is used only if it agrees with that. Raises the
        exception of the last alternative.
        """
        exact = None if torch_private.aliasing_of(self.overload).writes else self._decomposed()
        narrow: list[Any] | None = None
        with contextlib.suppress(Exception):  # any exception of any kernel
            narrow = self._by_kernel(tuple(None if dtype is None else torch.float32 for dtype in self.given))
        if exact is not None and (narrow is None or _agree(exact, narrow)):
            return self.finished(exact)
        return self.finished(self._by_kernel(self.given) if narrow is None else narrow)

    def _decomposed(self) -> list[Any] | None:
        decomposition = torch_private.decomposition_of(self.overload)
        if decomposition is None:
            return None
        try:
            return torch_private.flat(decomposition(*self.args, **self.kwargs))[0]
        except Exception:  # noqa: BLE001  # a kernel may support what a decomposition does not
            return None

    def _by_kernel(self, dtypes: tuple[torch.dtype | None, ...]) -> list[Any]:
        """Return the widened results of the kernel of ``dtypes``, and copy mutated values to the arguments."""
        leaves, spec = torch_private.flat((self.args, self.kwargs))
        narrow = [
            leaf if dtype is None or not is_real(leaf) or leaf.is_complex() else leaf.to(dtype, copy=True)
            for leaf, dtype in zip(leaves, dtypes, strict=True)
        ]
        args, kwargs = torch_private.unflat(narrow, spec)
        results = torch_private.flat(torch_private.call_overload(self.overload, args, kwargs))[0]
        if torch_private.aliasing_of(self.overload).writes:
            for leaf, changed in zip(leaves, narrow, strict=True):
                if leaf is not changed and is_real(leaf):
                    leaf.copy_(changed)
        return [widened(value) if is_real(value) else value for value in results]

    def of_float32(self, *, onednn: bool | None = None) -> list[Any]:
        """Return the flat results of the float32 kernel, each rounded once at the end.

        Values with an error above ``FLOAT32_FLIPS`` are replaced by those of the float64 kernel, since a broken kernel
        is not a reference. On a CPU, float32 and bf16 may run in oneDNN unless ``onednn`` is false; fp16 does not.
        """
        leaves, spec = torch_private.flat((self.args, self.kwargs))
        args, kwargs = torch_private.unflat(
            [leaf.to(torch.float32) if is_real(leaf) else leaf for leaf in leaves], spec
        )
        exact = torch_private.flat(self.overload(*self.args, **self.kwargs))[0]
        mkldnn: Any = torch.backends.mkldnn
        before = mkldnn.set_flags(False)[0]  # the first flag is whether oneDNN is enabled
        try:
            mkldnn.set_flags(before and (self.returned[0] != torch.float16 if onednn is None else onednn))
            results = torch_private.flat(self.overload(*args, **kwargs))[0]
        finally:
            mkldnn.set_flags(before)
        return self.finished([_near(a, b) if is_real(b) else b for a, b in zip(results, exact, strict=True)])

    def finished(self, results: list[Any]) -> list[Any]:
        """Round flat ``results`` to the returned dtypes."""
        if not self.rounds or not self.returned:
            return results
        return [
            rounded(value, dtype) if dtype is not None and is_real(value) else value
            for value, dtype in zip(results, self.returned, strict=True)
        ]
