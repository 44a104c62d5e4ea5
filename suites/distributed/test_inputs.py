"""A policy's casts at a module's boundary: inputs in every form, outputs in every container, gradients of inputs."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name

from .expectations import needs_streams, settings
from .policies import POLICIES
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


UNITS = pytest.mark.parametrize("unit", ["FSDP1", "FSDP2"])
INSIDE = pytest.mark.parametrize("inside", [False, True], ids=["root", "inside another"])


def _settings(amp: SuiteAmp, unit: str, **more: object) -> dict[str, object]:
    if unit == "FSDP2":
        needs_streams(amp)
    policy = {name: dtype for name, dtype in POLICIES["low, reduced in float32"].requested(amp).items() if dtype}
    return settings(amp, unit=unit, **{"policy": policy, **more})


@UNITS
@INSIDE
def test_inputs_are_cast_wherever_they_are(amp: SuiteAmp, ranks: RankGroup, unit: str, *, inside: bool) -> None:
    """Inputs by position or keyword, in a list, dictionary or dataclass are rounded once; gradients are float32.

    In pytorch/pytorch#153077 a dataclass was left out. Inputs that are not floating-point stay unchanged.
    """
    for number, answer in enumerate(ranks.ask(takes, _settings(amp, unit, inside=inside))):
        expected = answer["given"].to(amp.dtype)
        for form, results in answer["forms"].items():
            wrong = _unlike(results, expected, answer["gradient"])
            if wrong:
                raise AmpFailure(
                    f"{unit} on rank {number} of {amp.target.id}: an input passed as {form} is not cast",
                    label_before="rule",
                    before=f"the module sees {amp.precision.dtype_name}, rounded once; the input's gradient is float32",
                    now=wrong,
                    likely="inputs of one form are ignored: keywords, or the items of a container",
                )


def _unlike(results: dict[str, object], expected: torch.Tensor, gradient: torch.Tensor) -> str | None:
    inputs, returned = results["seen"], results["gradient"]
    assert isinstance(inputs, list)
    (floating,) = (tensor for tensor in inputs if tensor.is_floating_point())
    if any(tensor.dtype is not torch.int64 for tensor in inputs if not tensor.is_floating_point()):
        return "its integers are cast"
    if floating.dtype is not expected.dtype or not torch.equal(floating, expected):
        return f"it sees {floating.dtype}"
    if not isinstance(returned, torch.Tensor):
        return "the input gets no gradient"
    if returned.dtype is not torch.float32 or not torch.equal(returned, gradient):
        return f"the gradient of the input differs, {returned.dtype}"
    return None


@UNITS
def test_inputs_stay_as_they_are_where_that_is_asked(amp: SuiteAmp, ranks: RankGroup, unit: str) -> None:
    """``cast_forward_inputs=False``: the module receives float32, in every form."""
    for answer in ranks.ask(takes, _settings(amp, unit, cast=False)):
        for form, results in answer["forms"].items():
            (floating,) = (tensor for tensor in results["seen"] if tensor.is_floating_point())
            assert floating.dtype is torch.float32, f"{form} is cast"
            assert torch.equal(floating, answer["given"])


@INSIDE
def test_outputs_are_cast_wherever_they_are(amp: SuiteAmp, ranks: RankGroup, *, inside: bool) -> None:
    """``output_dtype`` casts every floating-point tensor of the output, and nothing else."""
    policy = POLICIES["low, reduced in float32, output float32"].requested(amp)
    for answer in ranks.ask(returns, _settings(amp, "FSDP2", policy=policy, inside=inside)):
        for container, dtypes in answer.items():
            assert {dtype for dtype in dtypes if dtype != "int64"} == {"float32"}, f"{container}: {dtypes}"
