"""Faults of the machine: errors that say nothing about the code that met them, recognized by torch's own messages."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_amp.text.quoted import printable

#: Maximum length of the quoted message.
_MOST = 240


class FaultKind(enum.Enum):
    """Kind of a fault, as the predicate of a sentence about the device."""

    MEMORY = "is out of memory"
    UNAVAILABLE = "is busy or unavailable"
    LOST = "is lost"


#: Texts of each kind. Sources: c10/cuda/CUDACachingAllocator.cpp, c10/core/impl/alloc_cpu.cpp and
#: c10/cuda/CUDAFunctions.cpp of torch; cudaGetErrorString (errors 2, 3, 46, 54, 100 and 802); nvmlErrorString.
_TEXTS = {
    FaultKind.MEMORY: re.compile(
        r"\b(?:CUDA|HIP|XPU|MPS backend) out of memory\b"
        r"|\b(?:CUDA|HIP)(?: driver)? error: out of memory"
        r"|\bCU(?:BLAS|DNN|SPARSE|SOLVER)\w*_ALLOC(?:ATION)?_FAILED\b"
        r"|\bDefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    ),
    FaultKind.UNAVAILABLE: re.compile(
        r"\bCUDA-capable device\(?s\)? (?:is/)?are busy or unavailable"
        r"|\bexclusive-thread device already in use"
        r"|\bsystem not yet initialized"
        r"|\b(?:CUDA error|Error 3): initialization error"
    ),
    FaultKind.LOST: re.compile(
        r"\bno CUDA-capable device is detected|\bNo CUDA GPUs are available|\bGPU is lost|\bfallen off the bus"
    ),
}
_OF_HOST = re.compile(r"\bDefaultCPUAllocator\b")
#: Statistics and advice that follow the essential part of the allocator's message.
_STATISTICS = re.compile(r" Of the allocated memory | If reserved but unallocated | See documentation for ")


@dataclass(frozen=True)
class MachineFault:
    """Fault of the machine: its kind, the message in one line, and whether the host's memory is meant."""

    kind: FaultKind
    text: str
    of_host: bool = False

    def about(self, device: str) -> str:
        """Return the fault as a sentence about ``device``, without the message."""
        return f"{'the host' if self.of_host else device} {self.kind.value}"


def fault_of_text(text: str) -> MachineFault | None:
    """Return the fault that a message of torch, CUDA or NVML describes; None for any other message."""
    for kind, pattern in _TEXTS.items():
        if pattern.search(text):
            return MachineFault(kind, _essential(text), of_host=bool(_OF_HOST.search(text)))
    return None


def fault_in(error: BaseException) -> MachineFault | None:
    """Return the fault of the machine that caused ``error``; None if it has another cause, or an unknown one."""
    for link in _chain(error):
        if isinstance(link, MemoryError):
            return MachineFault(FaultKind.MEMORY, _essential(f"MemoryError: {link}"), of_host=True)
        fault = fault_of_text(_text_of(link))
        if fault is not None:
            return fault
    return None


def _text_of(error: BaseException) -> str:
    """Return the text of an error; nothing if it has none, since the text of a test's own error may raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a test's own code
        return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, with errors that were being handled unless they are suppressed (``from None``)."""
    link: BaseException | None = error
    yielded: set[int] = set()
    while link is not None and id(link) not in yielded:
        yielded.add(id(link))
        yield link
        link = link.__cause__ if link.__cause__ is not None or link.__suppress_context__ else link.__context__


def _essential(text: str) -> str:
    """Return the first line of a message, without statistics and advice, in at most _MOST characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = printable(_STATISTICS.split(line)[0])
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"
