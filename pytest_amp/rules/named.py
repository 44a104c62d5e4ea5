"""Observation of the rules of overloads with named dimensions, which torch had until 2.12.

Neither a recorder nor a fake tensor supports names: a rule can only be inferred from the dtypes of results on a real
device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.rules.observed import UNOBSERVED, UNRECOGNISED, Evidence, ObservedRule
from pytest_amp.rules.spec import Rule, RuleName

_Function = Callable[..., torch.Tensor]

#: torch without the types of the releases that have no named dimensions.
_torch: Any = torch

#: A public function that calls each such overload, for a tensor with a dimension "columns" and an optional dtype.
NAMED: Mapping[str, _Function] = MappingProxyType(
    {
        "aten::cumprod.dimname": lambda x, **dtype: _torch.cumprod(x, "columns", **dtype),
        "aten::cumsum.dimname": lambda x, **dtype: _torch.cumsum(x, "columns", **dtype),
        "aten::log_softmax.Dimname": lambda x, **dtype: _torch.log_softmax(x, "columns", **dtype),
        "aten::prod.dim_Dimname": lambda x, **dtype: _torch.prod(x, "columns", **dtype),
        "aten::softmax.Dimname": lambda x, **dtype: _torch.softmax(x, "columns", **dtype),
        "aten::sum.dim_DimnameList": lambda x, **dtype: _torch.sum(x, ["columns"], **dtype),
    }
)

#: Overloads that no public function can call, with the reason.
UNREACHABLE: Mapping[str, str] = MappingProxyType(
    {
        "aten::index_copy.dimname": "torch refuses every call: named dimensions are not implemented for it",
        "aten::norm.names_ScalarOpt_dim": "torch.norm no longer passes named dimensions on to it",
    }
)


def observe_named(overload: str, device: Device, low: torch.dtype, rule: Rule | None) -> ObservedRule:
    """Infer the rule from the dtypes of results; the expected ``rule`` decides between rules with equal dtypes."""
    if overload in UNREACHABLE:
        return ObservedRule(overload, UNOBSERVED, UNREACHABLE[overload], ())
    if device.kind is DeviceKind.FAKE:
        return ObservedRule(overload, UNOBSERVED, "fake tensors have no named dimensions", ())
    float32, float64 = torch.float32, torch.float64
    dtypes = ((float32, None), (low, None), (float64, None), (low, float64), (float64, float32))
    results = tuple(_result(NAMED[overload], device, low, dtype, requested) for dtype, requested in dtypes)
    evidence = tuple(
        Evidence(f"{dtype}, dtype={requested}", (), (str(result),))
        for (dtype, requested), result in zip(dtypes, results, strict=True)
    )
    full = (float32, float32, float64, float64, float32)
    fitting = {
        RuleName.LOWER_PRECISION_FP: (low, low, *full[2:]),
        RuleName.FP32: full,
        RuleName.FP32_SET_OPT_DTYPE: full,
        RuleName.NONE: (float32, low, *full[2:]),
    }
    names = [name for name, dtypes in fitting.items() if dtypes == results]
    if not names:
        what = ", ".join(f"{item.variation}: {item.result[0]}" for item in evidence)
        return ObservedRule(overload, UNRECOGNISED, what, evidence)
    chosen = rule.name if rule is not None and rule.name in names else names[0]
    return ObservedRule(overload, chosen.value, None, evidence)


def _result(
    function: _Function, device: Device, low: torch.dtype, dtype: torch.dtype, requested: torch.dtype | None
) -> torch.dtype:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns that named tensors are experimental
        ones: Any = _torch.ones(3, 4, dtype=dtype, device=device.torch_device).rename("rows", "columns")
        with device.autocast(low):
            result = function(ones) if requested is None else function(ones, dtype=requested)
    return result.dtype
