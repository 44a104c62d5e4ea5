"""Mixed-precision policies by name, with the expected dtypes of messages and the expected gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import release_of
from pytest_amp.failure import AmpFailure

from .models import Tensors, manual_gradients, mean


@dataclass(frozen=True)
class Policy:
    """Requested dtypes: ``low`` stands for the autocast dtype, None for no request; ``region`` is autocast around it.

    ``unasked`` is the dtype of a reduction without a request; by default that of the gathered parameters.
    """

    param: str | None = None
    reduce: str | None = None
    output: str | None = None
    region: bool = False
    unasked: str | None = None

    def requested(self, amp: SuiteAmp) -> dict[str, str | None]:
        """Return the requested dtypes in the form that programs take."""
        return {
            "param_dtype": _named(self.param, amp),
            "reduce_dtype": _named(self.reduce, amp),
            "output_dtype": _named(self.output, amp),
        }

    def gathered(self, amp: SuiteAmp) -> str:
        """Return the dtype of an all-gather: parameters are sent in their dtype of computation."""
        return _named(self.param, amp) or "float32"

    def reduced(self, amp: SuiteAmp) -> str:
        """Return the dtype of a reduce-scatter: the requested one, else ``unasked`` or that of the parameters."""
        return _named(self.reduce, amp) or self.unasked or self.gathered(amp)

    def returned(self, amp: SuiteAmp) -> str:
        """Return the dtype of the model's output: the requested one, else the dtype of computation."""
        return _named(self.output, amp) or (amp.precision.dtype_name if self.region else self.gathered(amp))

    def gradients(self, amp: SuiteAmp) -> Tensors:
        """Return reference gradients from manual casts in one process, computed and reduced as the policy says."""
        device = amp.device.torch_device
        if self.region:
            return mean(manual_gradients(amp.config.seed, device, amp.autocast))
        parts = manual_gradients(
            amp.config.seed,
            device,
            contextlib.nullcontext,
            dtype=_dtype(self.gathered(amp)),
            output=None if self.output is None else _dtype(self.returned(amp)),
        )
        return averaged(parts, _dtype(self.reduced(amp)))


def averaged(parts: list[Tensors], dtype: torch.dtype) -> Tensors:
    """Return the float32 mean of values cast to ``dtype`` and summed in it; fp16 divides first, to stay in range."""
    if dtype is torch.float16:
        return mean(parts, dtype)
    cast = [{name: value.to(dtype) for name, value in part.items()} for part in parts]
    return {name: ((cast[0][name] + cast[1][name]) / 2).float() for name in cast[0]}


def _named(word: str | None, amp: SuiteAmp) -> str | None:
    return amp.precision.dtype_name if word == "low" else word


def _dtype(name: str) -> torch.dtype:
    dtype: Any = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


POLICIES = {
    "low": Policy(param="low"),
    "low, reduced in float32": Policy(param="low", reduce="float32"),
    "low, reduced in float32, output float32": Policy(param="low", reduce="float32", output="float32"),
    "low, reduced in low, output float32": Policy(param="low", reduce="low", output="float32"),
    "autocast": Policy(region=True),
    "float32": Policy(),
}

#: The policies of FSDP2. A reduction without a dtype of its own has that of the parameters' gradients since torch
#: 2.15 (torch.distributed.fsdp.MixedPrecisionPolicy, versionchanged); before, it had ``param_dtype``, as FSDP1 has.
OF_FSDP2 = (
    {name: replace(policy, unasked="float32") for name, policy in POLICIES.items()}
    if release_of(torch.__version__) >= (2, 15)
    else POLICIES
)


def expect_sent(amp: SuiteAmp, answer: Mapping[str, Any], policy: Policy, *, subject: str) -> dict[str, list[str]]:
    """Raise AmpFailure unless a step gathers and reduces in the dtypes of its policy; return the calls by kind."""
    gathered, reduced = policy.gathered(amp), policy.reduced(amp)
    sent_dtypes: dict[str, set[str]] = {}
    for kind, *dtypes in answer["sent"]:
        sent_dtypes.setdefault(kind, set()).update(dtypes)
    sent = {kind: sorted(dtypes) for kind, dtypes in sent_dtypes.items()}
    if sent != {"all_gather": [gathered], "reduce_scatter": [reduced]}:
        raise AmpFailure(
            f"{subject} of {amp.target.id} sends other dtypes than its policy requests",
            label_before="rule",
            before=f"all_gather of {gathered}, reduce_scatter of {reduced}",
            now=str(sent),
            likely="param_dtype or reduce_dtype is ignored, or parameters are cast after they are gathered",
        )
    return sent
