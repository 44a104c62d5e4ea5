"""Functions that run on each rank: a policy's casts of a module's inputs and outputs, in every form."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name

from .programs import dtype_of, low_dtype
from .ranks_fsdp import mesh_of

ROWS, WIDTH = 4, 8


@dataclasses.dataclass
class Held:
    """Input of some models: a dataclass."""

    x: torch.Tensor


class Named(NamedTuple):
    """Input of other models: a named tuple."""

    x: torch.Tensor


#: The arguments of a call by the form in which they hold one tensor.
FORMS: dict[str, Callable[[torch.Tensor], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "positional": lambda x: ((x,), {}),
    "keyword": lambda x: ((), {"x": x}),
    "keyword beside another": lambda x: ((torch.arange(ROWS),), {"x": x}),
    "list": lambda x: (([x],), {}),
    "dictionary": lambda x: (({"x": x},), {}),
    "dataclass": lambda x: ((Held(x),), {}),
    "named tuple": lambda x: ((Named(x),), {}),
    "ordered dictionary": lambda x: ((collections.OrderedDict(x=x),), {}),
    "dictionary by keyword": lambda x: ((), {"given": {"x": x, "name": "x"}}),
    "list of dictionaries": lambda x: (([{"x": (x,)}],), {}),
    "dictionary of lists by keyword": lambda x: ((), {"given": {"x": [None, x]}}),
}


def tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors in a container of any of these kinds."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (Held, Named)):
        return [value.x]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


class _Takes(nn.Module):
    """Layer that takes its floating-point input in any container, and returns its output in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.given: list[torch.Tensor] = []
        self.returns: Callable[[torch.Tensor], Any] = lambda output: output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.given = tensors([*args, kwargs])
        (x,) = (tensor for tensor in self.given if tensor.is_floating_point())
        return self.returns(self.layer(x.to(self.layer.weight.dtype)))

    def encode(self, x: torch.Tensor) -> Any:
        """Call the layer; users call this method in place of the module."""
        return self.forward(x)


class _Around(nn.Module):
    """Model whose only unit has the policy; the unit is not the root."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def _sharded(inner: nn.Module, rank: Rank, settings: Mapping[str, Any]) -> Any:
    """Return a root without a policy, around a unit with one (or the unit alone)."""
    policy: Any = {name: dtype_of(value) for name, value in settings["policy"].items()}
    policy["cast_forward_inputs"] = settings.get("cast", True)
    inside = settings.get("inside", False)
    if settings["unit"] == "FSDP2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        unit: Any = fully_shard(inner, mesh=mesh_of(rank), mp_policy=MixedPrecisionPolicy(**policy))
        return fully_shard(_Around(unit), mesh=mesh_of(rank)) if inside else unit
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    policy["cast_root_forward_inputs"] = policy["cast_forward_inputs"]
    keywords: Any = {"device_id": rank.device, "use_orig_params": True}
    unit = FullyShardedDataParallel(inner, mixed_precision=MixedPrecision(**policy), **keywords)
    return FullyShardedDataParallel(_Around(unit), **keywords) if inside else unit


def takes(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a float32 input as the module receives it, in each form, and its gradient, with those of manual casts."""
    torch.manual_seed(settings["seed"])
    inner = _Takes().to(rank.device)
    alone = copy.deepcopy(inner.layer).to(low_dtype(settings))
    parallel = _sharded(inner, rank, settings)
    x = torch.randn(ROWS, WIDTH, device=rank.device)
    results = {}
    calls: dict[str, Any] = dict.fromkeys(FORMS, parallel)
    if settings["unit"] == "FSDP2" and not settings.get("inside"):
        from torch.distributed.fsdp import register_fsdp_forward_method

        register_fsdp_forward_method(parallel, "encode")
        calls["an argument of a registered method"] = parallel.encode
    for form, call in calls.items():
        args, kwargs = FORMS.get(form, FORMS["positional"])(leaf := x.clone().requires_grad_())
        torch.autograd.backward(call(*args, **kwargs).float().square().sum())
        results[form] = {
            "seen": [tensor.detach().cpu() for tensor in inner.given],
            "gradient": None if leaf.grad is None else leaf.grad.cpu(),
        }
    again = x.clone().requires_grad_()
    torch.autograd.backward(alone(again.to(low_dtype(settings))).float().square().sum())
    assert again.grad is not None
    return {"forms": results, "given": x.cpu(), "gradient": again.grad.cpu()}


#: Outputs of a model, by the kind of their container.
CONTAINERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda output: output,
    "tuple": lambda output: (output, output + 1),
    "list": lambda output: [output],
    "dictionary": lambda output: {"made": output, "counted": torch.arange(2)},
    "named tuple": Named,
    "list of dictionaries": lambda output: [{"made": (output,)}],
}


def returns(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dtypes of all outputs of a module, by container."""
    inner = _Takes().to(rank.device)
    parallel = _sharded(inner, rank, settings)
    x = torch.ones(ROWS, WIDTH, device=rank.device)
    dtypes = {}
    for name, container in CONTAINERS.items():
        inner.returns = container
        dtypes[name] = [dtype_name(tensor.dtype) for tensor in tensors(parallel(x))]
    return dtypes
