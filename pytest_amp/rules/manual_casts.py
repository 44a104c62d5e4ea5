"""Manual casts by a rule: the call that autocast should make in place of the user's call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.rules.spec import RuleName

#: The overloads that fp32_append_dtype calls: KERNEL_DIFFERENT_REDISPATCH_SIGNATURE in ATen/autocast_mode.h.
APPENDED = {
    "aten::norm.Scalar": "aten::norm.ScalarOpt_dtype",
    "aten::norm.ScalarOpt_dim": "aten::norm.ScalarOpt_dim_dtype",
    "aten::norm.names_ScalarOpt_dim": "aten::norm.names_ScalarOpt_dim_dtype",
}


#: Part of the error message of a banned operator: binary_cross_entropy_banned in ATen/autocast_mode.cpp.
BANNED_SAYS = "unsafe to autocast"


@dataclass(frozen=True)
class Invocation:
    """An overload and the arguments of its call."""

    overload: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def __call__(self) -> Any:
        """Make the call."""
        return torch_private.find_overload(self.overload)(*self.arguments, **self.keywords)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the arguments, including those in lists, in order."""
        tensors: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(tensor)
            return tensor

        self.mapped(keep)
        return tensors

    def floats(self) -> list[torch.Tensor]:
        """Return the floating tensors among the arguments, in order."""
        return [tensor for tensor in self.tensors() if tensor.is_floating_point()]

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Invocation:
        """Return the call with ``change`` applied to each tensor argument, in order."""
        arguments = tuple(_mapped(change, value) for value in self.arguments)
        keywords = {name: _mapped(change, value) for name, value in self.keywords.items()}
        return Invocation(self.overload, arguments, keywords)


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, item) for item in value)
    return value


class Refused(RuntimeError):
    """Error of a rule that refuses the call."""


def applicable(overload: str) -> list[RuleName]:
    """Return the rules that an overload can have: rules about a dtype argument require one."""
    rules = [RuleName.LOWER_PRECISION_FP, RuleName.FP32, RuleName.PROMOTE, RuleName.BANNED, RuleName.NONE]
    if dtype_argument(overload) is not None:
        rules.insert(2, RuleName.FP32_SET_OPT_DTYPE)
    if overload in APPENDED:
        rules.insert(2, RuleName.FP32_APPEND_DTYPE)
    return rules


def dtype_argument(overload: str) -> str | None:
    """Return the name of an overload's optional dtype argument, if it has one."""
    arguments = torch_private.arguments_of(torch_private.find_overload(overload))
    return next((name for name, kind in arguments.items() if kind == "Optional[ScalarType]"), None)


def is_eligible(tensor: torch.Tensor, device_type: str) -> bool:
    """Return whether autocast for ``device_type`` may cast ``tensor``: ``is_eligible`` in ATen/autocast_mode.h."""
    return tensor.device.type == device_type and tensor.is_floating_point() and tensor.dtype != torch.float64


@dataclass(frozen=True)
class Plan:
    """Replacement of a call by autocast: ``overload`` with ``keywords``, after a cast to ``dtype`` if any."""

    overload: str
    keywords: Mapping[str, Any]
    device_type: str
    dtype: torch.dtype | None = None

    def carried_out(self, call: Invocation) -> Invocation:
        """Cast the tensors of ``call``, and return the call that autocast should make."""
        dtype = self.dtype
        if dtype is None:
            return Invocation(self.overload, call.arguments, self.keywords)
        return call.mapped(lambda tensor: tensor.to(dtype) if is_eligible(tensor, self.device_type) else tensor)

    def signature(self, call: Invocation) -> tuple[object, ...]:
        """Return a value that is equal for plans that run the same operator on the same dtypes of ``call``."""
        dtypes = [
            self.dtype if self.dtype is not None and is_eligible(tensor, self.device_type) else tensor.dtype
            for tensor in call.tensors()
        ]
        return self.overload, *dtypes, *sorted((name, str(value)) for name, value in self.keywords.items())


def manual_plan(rule: RuleName, call: Invocation, *, device_type: str, dtype: torch.dtype) -> Plan:
    """Plan the call that autocast for ``device_type`` in ``dtype`` should make in place of ``call``.

    Follows the WrapFunction_ templates in ATen/autocast_mode.h; the dispatcher calls them only if a tensor argument is
    on the device. Raises Refused if the rule refuses the call.
    """
    unchanged = Plan(call.overload, call.keywords, device_type)
    if rule is RuleName.NONE or not any(tensor.device.type == device_type for tensor in call.tensors()):
        return unchanged
    if rule is RuleName.BANNED:
        raise Refused(f"{call.overload} is {BANNED_SAYS}")
    if rule in (RuleName.LOWER_PRECISION_FP, RuleName.FP32):
        return replace(unchanged, dtype=dtype if rule is RuleName.LOWER_PRECISION_FP else torch.float32)
    if rule is RuleName.PROMOTE:
        return replace(unchanged, dtype=promoted(call, device_type=device_type, dtype=dtype))
    return _with_dtype(rule, call, unchanged)


def _with_dtype(rule: RuleName, call: Invocation, unchanged: Plan) -> Plan:
    first = call.arguments[0]
    assert isinstance(first, torch.Tensor)
    eligible = is_eligible(first, unchanged.device_type)
    if rule is RuleName.FP32_APPEND_DTYPE:
        keywords = {**_left_out(call), **call.keywords, "dtype": torch.float32 if eligible else first.dtype}
        return replace(unchanged, overload=APPENDED[call.overload], keywords=keywords)
    name = dtype_argument(call.overload)
    if name is None or name in call.keywords or not eligible:
        return unchanged
    return replace(unchanged, keywords={**call.keywords, name: torch.float32})


def _left_out(call: Invocation) -> dict[str, Any]:
    """Return the defaults of the arguments that ``call`` omits: the overload with a dtype has no defaults for them."""
    overload = torch_private.find_overload(call.overload)
    names = [*torch_private.arguments_of(overload)][: len(call.arguments)]
    return {name: value for name, value in torch_private.defaults_of(overload).items() if name not in names}


def promoted(call: Invocation, *, device_type: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to which promote casts: ``prioritize`` in ATen/autocast_mode.h.

    It is float32 if any eligible argument has that dtype, else the autocast dtype. Optional tensors are ignored, and
    another 16-bit dtype raises Refused, as in torch (both: pytorch/pytorch#191125).
    """
    current = dtype
    kinds = torch_private.arguments_of(torch_private.find_overload(call.overload))
    arguments = {**dict(zip(kinds, call.arguments, strict=False)), **call.keywords}
    tensors = tuple(value for name, value in arguments.items() if kinds[name] != "Optional[Tensor]")
    for tensor in Invocation(call.overload, tensors, {}).floats():
        if not is_eligible(tensor, device_type):
            continue
        if torch.float32 in (current, tensor.dtype):
            current = torch.float32
        elif tensor.dtype != dtype:
            raise Refused("Unexpected floating ScalarType in at::autocast::prioritize")
    return current
