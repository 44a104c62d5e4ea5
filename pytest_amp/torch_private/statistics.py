"""The running statistics that torch's operators of normalization update in a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_amp.torch_private.dispatcher import arguments_of, find_overload, has_overload
from pytest_amp.torch_private.interception import Interception, intercepted_calls

if TYPE_CHECKING:
    import torch

#: The operators with ``running_mean`` and ``running_var`` (aten/src/ATen/native/native_functions.yaml).
#: ``instance_norm`` writes them itself, from copies that it passes to ``batch_norm``; SyncBatchNorm calls the operators
#: that gather.
_OPERATORS = (
    "aten::batch_norm",
    "aten::instance_norm",
    "aten::_batch_norm_impl_index",
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_batch_norm_with_update",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::batch_norm_update_stats",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
)
#: The argument that says whether an operator updates them; an operator without any of these always does.
_FLAGS = ("training", "train", "use_input_stats")


@contextmanager
def updated_statistics() -> Iterator[list[torch.Tensor]]:
    """Collect the tensors that normalization updates as running statistics inside the block, whatever their names.

    Raises PrivateApiGone as ``intercepted_calls`` and ``arguments_of`` do.
    """
    import torch

    updated: list[torch.Tensor] = []

    def handle(call: Interception) -> Any:
        named = dict(zip(arguments_of(call.overload), call.args, strict=False)) | call.kwargs
        if all(named.get(flag, True) for flag in _FLAGS):
            statistics = (named.get("running_mean"), named.get("running_var"))
            updated.extend(statistic for statistic in statistics if isinstance(statistic, torch.Tensor))
        return call.proceed()

    overloads = {name: find_overload(name) for name in _OPERATORS if has_overload(name)}
    with intercepted_calls(overloads, handle):
        yield updated
