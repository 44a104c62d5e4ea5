"""Cast manually by autocast's rules, to compute mixed precision without autocast's kernels."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from pytest_amp import torch_private
from pytest_amp.rules import spec
from pytest_amp.rules.manual_casts import Invocation, dtype_argument, is_eligible, manual_plan
from pytest_amp.rules.spec import Coverage, Rule, RuleName

#: The original functions, even while ``asked_for_autocast`` replaces those of ``torch``.
_is_autocast_enabled, _get_autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


def rules_are_known(device_type: str) -> bool:
    """Return whether the spec has this device type's rules."""
    return spec.coverage(device_type, torch.__version__) is not Coverage.UNKNOWN_DEVICE


@contextlib.contextmanager
def manual_casts(device_type: str, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Replace autocast's kernels by manual casts by the rules of the spec inside the block.

    With a ``dtype`` the block replaces an autocast region, whether autocast is enabled around it or not; without a
    ``dtype`` it is used inside a region. Nested regions (another dtype, ``enabled=False``) work as with autocast.

    Each call of an operator that has a rule or a registered autocast kernel is intercepted above autocast, whether a
    Python function, a composite operator or a module calls it: its arguments are cast by the rule, and it runs with
    autocast off. An operator without a rule runs as without autocast, even if a kernel is registered; on a release
    newer than the spec, torch handles operators that are not in the spec. A weight that is used twice is cast once, as
    autocast does (``cached_cast`` in aten/src/ATen/autocast_mode.cpp). Recomputation by ``torch.utils.checkpoint``
    happens in the backward pass, outside the block, and is torch's own.
    """
    casts = _ManualCasts(device_type, _rules(device_type), dtype, _state(device_type))
    overloads = {name: torch_private.find_overload(name) for name in casts.rules}
    with torch_private.intercepted_calls(overloads, casts.run):
        yield


#: Functions of ``torch`` that query autocast's state; the last two are older names.
_QUERIES = ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_cpu_enabled", "get_autocast_gpu_dtype")


@contextlib.contextmanager
def asked_for_autocast() -> Iterator[list[str]]:
    """Record the names of the queries of autocast's state that Python code makes through ``torch`` inside the block.

    Entering a region queries the state, as do ``custom_fwd``, ``torch.utils.checkpoint`` and some fast paths of
    ``torch.nn``. A case that queries it may behave differently with autocast off.
    """
    queries: list[str] = []

    def noting(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def query(*args: object, **kwargs: object) -> object:
            queries.append(name)
            return original(*args, **kwargs)

        return query

    originals = {name: getattr(torch, name) for name in _QUERIES if hasattr(torch, name)}
    try:
        for name, original in originals.items():
            setattr(torch, name, noting(name, original))
        yield queries
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _rules(device_type: str) -> dict[str, Rule | None]:
    """Return the rule of each overload to intercept; None for overloads that must run as without autocast."""
    expected = spec.expected(device_type, torch.__version__)
    registered = set(torch_private.autocast_registrations(device_type))
    rules: dict[str, Rule | None] = {name: rule for name, rule in expected.items() if torch_private.has_overload(name)}
    if spec.coverage(device_type, torch.__version__) is Coverage.COVERED:
        rules.update(dict.fromkeys(name for name in registered - expected.keys() if name.startswith("aten::")))
    return rules


def _state(device_type: str) -> tuple[bool, torch.dtype]:
    return _is_autocast_enabled(device_type), _get_autocast_dtype(device_type)


@dataclass
class _ManualCasts:
    """Handler that runs operators by their rules.

    ``stands_for`` is the dtype of the region that the block replaces, and ``around`` the autocast state on entry.
    ``cache`` maps a leaf's identity and dtype to the leaf and its cast, which has a history even if it was made under
    ``no_grad``: both modes share one cast, as in autocast, where inference mode neither keeps nor looks up casts.
    """

    device_type: str
    rules: dict[str, Rule | None]
    stands_for: torch.dtype | None
    around: tuple[bool, torch.dtype]
    cache: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def run(self, call: torch_private.Interception) -> object:
        """Run one call by its rule, and return the result."""
        low = self._dtype()
        if low is None or call.precedes_a_transform:
            return call.proceed()
        name = call.overload.name()
        rule = self.rules[name]
        if rule is None:
            return call.proceed_without_autocast(self.device_type)
        dtype = low if rule.dtype is None else getattr(torch, rule.dtype)
        invocation = _with_dtype_by_name(Invocation(name, call.args, call.kwargs))
        with torch_private.without_interception():
            if rule.name is RuleName.LOWER_PRECISION_FP:
                invocation = invocation.mapped(lambda tensor: self._cached(tensor, dtype) if dtype == low else tensor)
            plan = manual_plan(rule.name, invocation, device_type=self.device_type, dtype=dtype)
            with warnings.catch_warnings():
                if rule.own_kernel is not None:
                    # cuDNN warns that the cast weights of a recurrent layer are not in one buffer.
                    warnings.simplefilter("ignore")
                return plan.carried_out(invocation)()

    def _dtype(self) -> torch.dtype | None:
        """Return the dtype of the current or of the replaced autocast region; None outside of both."""
        enabled, dtype = _state(self.device_type)
        if self.stands_for is not None and (enabled, dtype) == self.around:
            return self.stands_for
        return dtype if enabled else None

    def _cached(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Cast ``tensor`` once per region if autocast would cache the cast; return it unchanged otherwise."""
        keeps = (
            torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
            and is_eligible(tensor, self.device_type)
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()  # noqa: SLF001
        )
        if not keeps:
            return tensor
        key = (id(tensor), dtype)
        if key not in self.cache:
            with torch.enable_grad():
                self.cache[key] = (tensor, tensor.to(dtype))
        return self.cache[key][1]


def _with_dtype_by_name(call: Invocation) -> Invocation:
    """Return the same call with an optional dtype argument, and the arguments after it, as keywords."""
    name = dtype_argument(call.overload)
    names = list(torch_private.arguments_of(torch_private.find_overload(call.overload)))
    if name is None or names.index(name) >= len(call.arguments):
        return call
    first = names.index(name)
    moved = dict(zip(names[first:], call.arguments[first:], strict=False))
    return Invocation(call.overload, call.arguments[:first], {**call.keywords, **moved})
