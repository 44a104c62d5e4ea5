"""Back end outside of torch: PrivateUse1 under the name ``tiny``, whose tensors are tensors of the CPU.

As a vendor's package would, it registers kernels (here: one fallback that computes on the CPU), autocast kernels for a
few operators, a device module with the dtypes that autocast may have, and, as a plugin of pytest, the device type with
its own rows of rules. Torch 2.10 or newer, whose back ends may be written in Python.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from pytest_amp.devices import DeviceType
from pytest_amp.devices.accelerator import AcceleratorDevice

LOWER = ("mm", "addmm", "bmm", "matmul", "linear")
FP32 = ("exp", "log_softmax.int", "softmax.int", "mse_loss")
#: Planted by a test: an operator that the vendor's release forgets to cast.
FORGOTTEN = "softmax.int" if "tiny_forgets_softmax" in sys.modules else ""


class TinyModule:
    """Interface of ``torch.tiny`` that torch requires."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


AUTOCAST: Any = torch._C.DispatchKeySet(getattr(torch._C, "_parse_dispatch_key")("AutocastPrivateUse1"))  # noqa: B009
#: CPU tensors by the address of the storage; never removed, as a process of a test is short.
HELD: dict[int, torch.Tensor] = {}


class TinyTensor(torch.Tensor):
    """Tensor without storage of its own; ``held`` is on the CPU."""

    held: torch.Tensor


def wrapped(storage: torch.Tensor) -> torch.Tensor:
    result: Any = torch._C._acc.create_empty_tensor(storage.shape, storage.dtype)
    result.__class__ = TinyTensor
    result.held = HELD[result.untyped_storage()._cdata] = storage
    tensor: torch.Tensor = result
    return tensor


def _inner(value: Any) -> Any:
    """Return the CPU tensor of a tensor of this back end; shallow copies, which torch makes, are found by storage."""
    if not isinstance(value, torch.Tensor) or value.device.type != "tiny":
        return value
    return value.held if isinstance(value, TinyTensor) else HELD[value.untyped_storage()._cdata]


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "tiny" else _inner(value)


def compute(overload: Any, *arguments: Any, **keywords: Any) -> Any:
    """Run any operator on the CPU; arguments that it writes to keep their identity."""
    target = keywords.get("device")
    outcome = overload(*tree_map(_on_cpu, arguments), **tree_map(_on_cpu, keywords))
    tensors = [argument for argument in (*arguments, *keywords.values()) if isinstance(argument, torch.Tensor)]
    tiny = [tensor for tensor in tensors if tensor.device.type == "tiny"]
    if isinstance(target, torch.device) and target.type == "cpu":
        return outcome

    def out(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        same = [tensor for tensor in tiny if _inner(tensor) is value]
        return same[0] if same else wrapped(value)

    return tree_map(out, outcome)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002
    _inner(target).copy_(_inner(source), non_blocking)
    return target


def _cast(overload: Any, dtype: torch.dtype | None) -> Any:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        expected = dtype or torch.get_autocast_dtype("tiny")

        def cast(value: Any) -> Any:
            fits = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(expected) if fits and value.device.type == "tiny" else value

        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return overload(*tree_map(cast, arguments), **keywords)

    return kernel


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


LIBRARY: Any = torch.library.Library  # which has no types
_setup_privateuseone_for_python_backend("tiny", backend_module=TinyModule())
LIBRARIES: list[Any] = [LIBRARY("_", "IMPL"), LIBRARY("aten", "IMPL")]
LIBRARIES[0].fallback(compute, "PrivateUse1")
LIBRARIES[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
LIBRARIES[1].impl("_copy_from", _copy_from, "PrivateUse1")
for name in ("detach", "alias"):  # torch's own would copy the tensor without the CPU tensor in it
    LIBRARIES[1].impl(name, lambda tensor: wrapped(_inner(tensor)), "PrivateUse1")
for names, dtype in ((LOWER, None), (FP32, torch.float32)):
    for name in names:
        if name != FORGOTTEN:
            LIBRARIES[1].impl(name, _cast(_overload(name), dtype), "AutocastPrivateUse1")


class TinyDevice(AcceleratorDevice):
    """Device whose back end has no streams to wait for."""

    def synchronize(self) -> None:
        """Wait for nothing: each call is complete when it returns."""


def pytest_amp_devices() -> list[DeviceType]:
    """Register the device and its autocast rules."""
    return [DeviceType("tiny", lambda index: TinyDevice("tiny", index), rules=Path(__file__).with_name("tiny.toml"))]
