"""Tensors with a device, a shape and a dtype but no storage."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone
from pytest_amp.torch_private.modes import each_call
from pytest_amp.torch_private.trees import tree_leaves, tree_map


def fake_tensor_mode() -> AbstractContextManager[Any]:
    """Return a context in which tensors have a device, a shape and a dtype but no storage.

    Raises PrivateApiGone without ``torch._subclasses.fake_tensor.FakeTensorMode``.
    """
    _import_fake_tensor_mode()
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def _import_fake_tensor_mode() -> None:
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: F401
    except ImportError:
        raise PrivateApiGone("torch._subclasses.fake_tensor.FakeTensorMode") from None
    _wake_only_devices_that_are_there()


@functools.cache
def _wake_only_devices_that_are_there() -> None:
    """Restrict torch's initialization of devices for fake tensors to devices that are available.

    If any GPU is available, torch initializes the device of each fake CUDA or XPU tensor by a real tensor there, which
    is an error for XPU on a machine with an NVIDIA GPU. A torch without ``init_gpu_context`` needs no workaround.
    """
    import torch
    from torch._subclasses import fake_tensor

    module: Any = fake_tensor
    wake = getattr(module, "init_gpu_context", None)
    if wake is None:
        return

    @functools.wraps(wake)
    def wake_if_there(*arguments: Any) -> None:
        if not arguments or getattr(torch, arguments[0].type).is_available():
            wake(*arguments)

    module.init_gpu_context = wake_if_there


@functools.cache
def shared_fake_tensor_mode() -> AbstractContextManager[Any]:
    """Return the ``fake_tensor_mode`` of the whole process, which may be entered repeatedly.

    Constructing one takes longer than most operators take under it.
    """
    return fake_tensor_mode()


def under_fake_tensors() -> bool:
    """Return whether a fake tensor mode is active in this thread, so that new tensors are fake.

    Raises PrivateApiGone without ``torch._C._get_dispatch_mode``.
    """
    import torch

    try:
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    except AttributeError:
        raise PrivateApiGone("torch._C._get_dispatch_mode") from None
    return mode is not None


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Silence the logged tracebacks of operators that fail on fake tensors inside the block.

    If a later torch renames the logger, the tracebacks appear again, and nothing else changes.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@functools.cache
def strict_fake_tensor_mode() -> AbstractContextManager[Any]:
    """Return a ``shared_fake_tensor_mode`` that never allocates: an operator without a rule for fake tensors raises.

    Without this, torch runs some operators on real tensors of the device, which a machine need not have.
    """
    _import_fake_tensor_mode()
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def is_limit_of_fake_tensors(error: BaseException) -> bool:
    """Return whether ``error`` is a limitation of fake tensors: a value is needed, or the operator has no rule."""
    from torch._subclasses import fake_tensor

    return isinstance(error, _limits(fake_tensor))


def _limits(module: Any) -> tuple[type[BaseException], ...]:
    names = (
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "UnsupportedFakeTensorException",
        "UnsupportedOperatorException",
    )
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


@contextmanager
def values_from_cpu() -> Iterator[None]:
    """Run operators that fake tensors do not support on CPU tensors, for the dtypes of their results.

    Use it inside a fake tensor mode. The CPU tensors are filled with one, or with False if they are bool. It acts below
    autocast, so autocast casts as usual. Raises PrivateApiGone without ``torch.utils._python_dispatch``.
    """
    import torch

    try:
        from torch.utils._python_dispatch import _disable_current_modes
    except ImportError:
        raise PrivateApiGone("torch.utils._python_dispatch._disable_current_modes") from None
    disable: Any = _disable_current_modes

    def answered(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return overload(*args, **kwargs)
        except Exception as error:
            if not is_limit_of_fake_tensors(error):
                raise
            limit = error
        device = next(leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))

        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                # Most bool tensors that operators read report an error condition: False.
                return torch.full(leaf.shape, int(leaf.dtype != torch.bool), dtype=leaf.dtype)
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        def fake(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            return leaf

        try:
            with disable():
                result = overload(*tree_map(real, args), **tree_map(real, kwargs))
        except Exception:  # noqa: BLE001  # a CPU cannot do it, either
            raise limit from None
        return tree_map(fake, result)

    with each_call(answered):
        yield


def install_device_guards(device_types: Iterable[str]) -> None:
    """Let tensors of ``device_types`` be indexed and receive gradients in this process without such a device.

    Torch guards the current device in C++, also around operators on fake tensors: a build without the back end has no
    guard and raises or aborts, a build with it calls a driver that may be missing. The guard of the meta device, which
    does nothing, replaces them. Only for a process that never uses a real device of these types. Raises PrivateApiGone
    without ``c10::impl::device_guard_impl_registry`` (c10/core/impl/DeviceGuardImplInterface.h).
    """
    import torch

    types: Any = getattr(getattr(torch._C, "_autograd", None), "DeviceType", None)
    try:
        library = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libc10.*"))))
        numbers = {name: int(getattr(types, name.upper())) for name in device_types}
        meta = int(types.Meta)
        array = ctypes.c_void_p * (max(meta, *numbers.values()) + 1)
        registry = array.in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except (AttributeError, OSError, StopIteration, ValueError):
        raise PrivateApiGone("c10::impl::device_guard_impl_registry") from None
    for number in numbers.values():
        registry[number] = registry[meta]
