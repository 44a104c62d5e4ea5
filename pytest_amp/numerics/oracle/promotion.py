"""Infer the dtypes of an operator's results from those of its arguments, without running the kernels."""

from __future__ import annotations

from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.oracle.conversion import flattened
from pytest_amp.numerics.oracle.operation import is_real

Dtypes = tuple[torch.dtype | None, ...]

#: Operators whose fake tensors return another dtype than the kernel does (torch 2.13, CPU; the backward pass of layer
#: normalisation: 2.6).
_KERNEL_KNOWS = frozenset(
    {
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "aten::native_batch_norm",
        "aten::native_group_norm",
        "aten::native_group_norm_backward",
    }
)

#: Operators whose fake tensors return another dtype than the kernel on older torch (2.6: float32). Running the kernel
#: would need its workspace, so the dtypes of the real results are used instead.
KERNEL_DECIDES = frozenset({"aten::mkldnn_rnn_layer_backward"})

_KNOWN: dict[object, Dtypes] = {}


def returned_dtypes(call: torch_private.Dispatched) -> Dtypes:
    """Return the dtypes of the flat results of ``call``; None for values other than floating and complex tensors.

    The call is made on fake tensors, once for each combination of dtypes. If fake tensors fail (a shape that depends on
    values), the operator itself runs. Raises whatever the operator raises.
    """
    if not torch_private.returns_tensors(call.overload):
        return ()
    if call.overload.name() == "aten::_cudnn_rnn_backward":
        return _of_recurrent(call)
    leaves, spec = flattened(call)
    key: object = (call.overload, str(spec), tuple(_kind(leaf) for leaf in leaves))
    if any(kind.startswith("List") for kind in torch_private.result_kinds(call.overload)):
        key = (key, tuple(_size(leaf) for leaf in leaves))  # the number of results depends on sizes
    if key not in _KNOWN:
        try:
            _KNOWN[key] = _of_reals(call) if call.overload.name() in _KERNEL_KNOWS else _of_fakes(call)
        except Exception:  # noqa: BLE001  # the operator itself works where fake tensors fail
            _KNOWN[key] = _of_reals(call)
    return _KNOWN[key]


def _of_recurrent(call: torch_private.Dispatched) -> Dtypes:
    """Return the dtypes of input, state and weight gradients: the kernel needs a real reserve, and has no fake rule."""
    x, weights, *_ = call.args
    cell = None if call.args[5] is None else x.dtype
    return (x.dtype, x.dtype, cell, *([weight.dtype for weight in weights] if call.args[21][3] else []))


def refusal(call: torch_private.Dispatched) -> Exception | None:
    """Return the exception that torch raises for ``call``, such as mismatched shapes; None if it raises none."""
    try:
        _of_fakes(call)
    except Exception:  # noqa: BLE001  # fake tensors may fail where the operator works
        try:
            _of_reals(call)
        except Exception as error:  # noqa: BLE001  # whatever it raises
            return error
    return None


def _kind(leaf: object) -> object:
    """Return the input of type promotion: a value's dtype, and whether it is a zero-dimensional tensor."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim() == 0, leaf.device.type
    if isinstance(leaf, (torch.dtype, str, bool, type(None))):
        return leaf
    return type(leaf)


def _size(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape
    return leaf if isinstance(leaf, int) else None


def _of_fakes(call: torch_private.Dispatched) -> Dtypes:
    leaves, spec = flattened(call)
    with torch_private.shared_fake_tensor_mode(), torch_private.quiet_fake_tensors():
        fakes = [
            torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        ]
        args, kwargs = torch_private.unflat(fakes, spec)
        return _dtypes(call.overload(*args, **kwargs))


def _of_reals(call: torch_private.Dispatched) -> Dtypes:
    leaves, spec = flattened(call)
    args, kwargs = torch_private.unflat([as_real(leaf) for leaf in leaves], spec)
    return _dtypes(torch_private.call_overload(call.overload, args, kwargs))


def as_real(leaf: Any) -> Any:
    """Return a virtual tensor as a real one of its dtype, any other tensor as a copy; other values unchanged."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    values = torch_private.values_of(leaf)
    return leaf.clone() if values is None else values.to(leaf.dtype, copy=True)


def _dtypes(result: Any) -> Dtypes:
    return tuple(value.dtype if is_real(value) else None for value in torch_private.flat(result)[0])
