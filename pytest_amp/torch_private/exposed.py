"""Memory of virtual tensors for code that uses pointers: a Triton kernel that is called directly, ctypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Exposed:
    """The float64 storage of virtual tensors, real memory of their dtype, and the memory's original contents."""

    values: Any
    memory: Any
    before: Any

    def read_back(self) -> None:
        """Copy the elements that were written to the memory into the float64 values."""
        import torch

        changed = self.memory != self.before
        self.values.copy_(torch.where(changed, self.memory.to(self.values.dtype), self.values))
        self.before.copy_(self.memory)

    def refresh(self) -> None:
        """Copy the current values to the memory."""
        self.memory.copy_(self.values)
        self.before.copy_(self.memory)


#: Exposed memory by the address of a float64 storage and by dtype, as long as a mode handles virtual tensors.
_EXPOSED: dict[tuple[int, Any], _Exposed] = {}
#: The dtypes of the tensors whose memory was used since the last call of ``memory_was_taken``.
_TAKEN: list[Any] = []


def memory_of(values: Any, dtype: Any) -> Any:
    """Return real memory of ``dtype`` with the size, strides and ``values`` of a virtual tensor.

    Writes to it are read back before the values are used again.
    """
    import torch

    key = (values.untyped_storage().data_ptr(), dtype)
    if key not in _EXPOSED:
        base = torch.empty(0, dtype=values.dtype, device=values.device).set_(values.untyped_storage())
        memory = base.to(dtype)
        _EXPOSED[key] = _Exposed(base, memory, memory.clone())
    else:
        _EXPOSED[key].read_back()
        _EXPOSED[key].refresh()
    _TAKEN.append(dtype)
    return _EXPOSED[key].memory.as_strided(values.size(), values.stride(), values.storage_offset())


def read_back(values: Any) -> None:
    """Copy writes to the exposed memory of ``values``, if any, into the values."""
    if _EXPOSED:
        address = values.untyped_storage().data_ptr()
        for (storage, _), exposed in list(_EXPOSED.items()):
            if storage == address:
                exposed.read_back()


def forget() -> None:
    """Release all exposed memory."""
    _EXPOSED.clear()


def memory_was_taken() -> bool:
    """Return whether code has used the memory of a virtual tensor since the last call."""
    result = bool(_TAKEN)
    _TAKEN.clear()
    return result
