"""Costs and savings of mixed precision other than time: copies between dtypes, saved tensors, peak memory."""

from pytest_amp.memory.casts import Census, census, check_casts
from pytest_amp.memory.limits import MemoryUse, check_memory
from pytest_amp.memory.passes import Passes
from pytest_amp.memory.peaks import Peak, growth, peak_of
from pytest_amp.memory.saved import Saved, saved_bytes

__all__ = [
    "Census",
    "MemoryUse",
    "Passes",
    "Peak",
    "Saved",
    "census",
    "check_casts",
    "check_memory",
    "growth",
    "peak_of",
    "saved_bytes",
]
