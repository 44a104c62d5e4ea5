"""The dispatcher's keys, autocast kernels, overloads and schemas."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone


def autocast_registrations(device_type: str) -> list[str]:
    """Return the qualified names (``aten::softmax.int``) of the overloads with an autocast kernel for ``device_type``.

    They are read from the running dispatcher, without kernels that are fallthroughs, which do nothing. Raises
    LookupError if this torch has no autocast for the device type, and PrivateApiGone without
    ``torch._C._dispatch_get_registrations_for_dispatch_key`` or
    ``torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough``.
    """
    import torch

    read = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if read is None:
        raise PrivateApiGone("torch._C._dispatch_get_registrations_for_dispatch_key")
    falls_through = getattr(torch._C, "_dispatch_kernel_for_dispatch_key_is_fallthrough", None)
    if falls_through is None:
        raise PrivateApiGone("torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough")
    key = autocast_key(device_type)
    try:
        names = read(key)
    except RuntimeError:  # no such dispatch key
        raise LookupError(f"torch {torch.__version__} has no autocast for {device_type}") from None
    return sorted(name for name in names if not falls_through(name, key))


def autocast_device_types() -> list[str]:
    """Return the device types for which this torch has autocast kernels, in alphabetical order.

    The candidates are the device types in torch's error message for an unknown one. Raises PrivateApiGone if that
    message lists none, and as ``autocast_registrations`` does.
    """
    import torch

    try:
        torch.device("no_such_type")
    except RuntimeError as refused:
        listed = re.search(r"Expected one of (.*?) device type", str(refused))
    if listed is None:
        raise PrivateApiGone("the device types in the message of torch.device")
    return sorted(name for name in listed[1].split(", ") if _has_autocast_kernels(name))


def _has_autocast_kernels(device_type: str) -> bool:
    try:
        return bool(autocast_registrations(device_type))
    except LookupError:
        return False


def find_overload(name: str) -> Any:
    """Return the callable of a qualified overload, ``aten::softmax.int``; LookupError if this torch has none.

    ``torch.ops`` is public; it is not documented that its overloads go through the dispatcher.
    """
    import torch

    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except AttributeError:
        raise LookupError(f"torch {torch.__version__} has no operator {name}") from None


def has_overload(name: str) -> bool:
    """Return whether this torch has a qualified overload."""
    try:
        find_overload(name)
    except LookupError:
        return False
    return True


def schema_of(overload: Any) -> Any:
    """Return an overload's schema as parsed by torch; PrivateApiGone without its ``_schema``."""
    schema = getattr(overload, "_schema", None)
    if schema is None:
        raise PrivateApiGone("torch._ops.OpOverload._schema")
    return schema


@functools.cache
def arguments_of(overload: Any) -> Mapping[str, str]:
    """Return the arguments of an overload and their types as in its schema: ``{"dtype": "Optional[int]"}``.

    Raises PrivateApiGone without the overload's ``_schema``.
    """
    return MappingProxyType({argument.name: str(argument.real_type) for argument in schema_of(overload).arguments})


@functools.cache
def defaults_of(overload: Any) -> Mapping[str, Any]:
    """Return the optional arguments of an overload and their defaults.

    Raises PrivateApiGone without the overload's ``_schema``.
    """
    arguments = schema_of(overload).arguments
    return MappingProxyType(
        {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    )


def mutates_arguments(overload: Any) -> bool:
    """Return whether an overload writes into an argument, as in-place and ``out=`` overloads do.

    Raises PrivateApiGone without the overload's ``_schema``.
    """
    return bool(schema_of(overload).is_mutable)


def cpu_has_onednn_kernels(precision: str) -> bool:
    """Return whether oneDNN has kernels for ``bf16`` or ``fp16`` on this CPU; False if torch has no such query.

    fp16 requires AVX512-FP16 or AMX-FP16, bf16 requires AVX512.
    """
    import torch

    ask = getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported", None)
    return bool(ask()) if ask is not None else False


def torch_c() -> Any:
    """Return ``torch._C``, without types."""
    import torch

    return torch._C


@functools.cache
def dispatch_key(name: str) -> Any:
    """Return torch's dispatch key ``name``; PrivateApiGone if it has none."""
    try:
        return torch_c()._dispatch_key_parse(name)
    except (AttributeError, RuntimeError):
        raise PrivateApiGone(f"dispatch key {name}") from None


def autocast_key(device_type: str) -> str:
    """Return the name of autocast's dispatch key; an out-of-tree back end may have renamed PrivateUse1."""
    name = getattr(torch_c(), "_get_privateuse1_backend_name", lambda: "privateuse1")()
    return f"Autocast{'PrivateUse1' if device_type in {name, 'privateuse1'} else device_type.upper()}"
