"""Planted faults of the machine: they are no result of a check, and no expected failure hides them."""

from __future__ import annotations

from typing import Any

import torch

from tests.planted.kernels import override, replace_kernel
from tests.planted.table import defect

#: Message of CUDA's allocator.
_FULL = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB."


def _fill(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError(_FULL)


@defect(
    "The device is full in a test that is expected to fail with RuntimeError, of which OutOfMemoryError is a subclass",
    caught_by="rules/test_families.py::test_layer_norm_takes_mixed_dtypes[cpu-bf16-float32 with low weights]",
    not_on_cuda="layer_norm of mixed dtypes is a known fault of a CPU only",
)
def full_device_hides_behind_a_known_fault() -> None:
    override("layer_norm", _fill, ["cpu"])


@defect(
    "The device is full whenever addbmm runs, with autocast and without it, which looks like a refusal",
    caught_by="rules/test_registered.py::test_rule[cpu-bf16-addbmm]",
)
def full_device_looks_like_a_refusal() -> None:
    replace_kernel("addbmm", _fill)
