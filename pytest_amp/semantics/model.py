"""Model of autocast's state in one thread and of its cast cache, after PyTorch's sources.

The model does not import torch; dtypes and device types are names. Each transition names its implementation in PyTorch.
Where PyTorch is known to be wrong, the model is wrong in the same way, and the suite has an expected failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Mode(Enum):
    """Autograd mode."""

    GRAD = "grad"
    NO_GRAD = "no_grad"
    INFERENCE = "inference_mode"


class Weight(Enum):
    """Kinds of float32 weights that the cache distinguishes."""

    TRAINED = "trained"
    SECOND = "a second one"
    FROZEN = "frozen"
    VIEW = "a view"


#: at::autocast::cached_cast (aten/src/ATen/autocast_mode.cpp) caches leaves that require grad and are not views.
CACHED_KINDS = frozenset({Weight.TRAINED, Weight.SECOND})


@dataclass(frozen=True)
class Facts:
    """Differences between releases and builds.

    ``supported`` are the device types on which a region can be enabled: a CUDA region disables itself with a warning
    where CUDA is missing. ``any_dtype`` are the device types that accept a dtype outside of ``low``, as CUDA does, and
    compute in it. ``history_kept``: since pytorch/pytorch#165068 (torch 2.11) a copy cached under no_grad has a
    history, and under inference mode nothing is cached or looked up.
    """

    defaults: Mapping[str, str]
    supported: frozenset[str]
    history_kept: bool
    any_dtype: frozenset[str] = frozenset()
    low: frozenset[str] = frozenset({"bfloat16", "float16"})


@dataclass
class Region:
    """A ``torch.autocast`` object; the last three fields are the state that its last ``__enter__`` saved."""

    device: str
    dtype: str
    enabled: bool
    cache: bool
    found_enabled: bool = False
    found_dtype: str = ""
    found_cache: bool = True


@dataclass(frozen=True)
class Use:
    """Observable properties of a product with a weight.

    ``dtype`` is the dtype of the result; ``casts`` is the number of casts of the weight; ``version`` is the number of
    changes of the weight before the copy in use was made; ``history`` is whether the result requires grad.
    """

    dtype: str
    casts: int
    version: int
    history: bool


@dataclass
class _Copy:
    dtype: str
    version: int
    history: bool


@dataclass
class Model:
    """One thread's autocast state, and the process's cast cache (it is not thread-local: ``get_cached_casts``)."""

    facts: Facts
    enabled: dict[str, bool] = field(init=False)
    dtypes: dict[str, str] = field(init=False)
    cache: bool = True
    depth: int = 0
    versions: dict[Weight, int] = field(default_factory=dict)
    _copies: dict[Weight, _Copy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set the initial state of a thread: ``autocast_dtypes`` in aten/src/ATen/autocast_mode.cpp."""
        self.enabled = dict.fromkeys(self.facts.defaults, False)
        self.dtypes = dict(self.facts.defaults)

    def state(self) -> dict[str, object]:
        """Return the state by the name of torch's query for it."""
        state: dict[str, object] = {f"is_autocast_enabled({key})": value for key, value in self.enabled.items()}
        state.update({f"get_autocast_dtype({key})": value for key, value in self.dtypes.items()})
        return {**state, "is_autocast_cache_enabled()": self.cache, "nesting depth": self.depth}

    def construct(self, device: str, *, dtype: str | None, enabled: bool, cache: bool | None) -> Region:
        """Model ``torch.autocast.__init__``: defaults are read here, not when the region is entered.

        An unsupported dtype, or CUDA on a machine without it, makes a disabled region with that dtype; CUDA checks no
        dtype but bfloat16.
        """
        chosen = self.dtypes[device] if dtype is None else dtype
        accepted = chosen in self.facts.low or device in self.facts.any_dtype
        on = enabled and device in self.facts.supported and accepted
        return Region(device, chosen, on, self.cache if cache is None else cache)

    def enter(self, region: Region) -> None:
        """Model ``torch.autocast.__enter__``: it saves the state on the object; entering again overwrites it."""
        region.found_enabled = self.enabled[region.device]
        region.found_dtype = self.dtypes[region.device]
        region.found_cache = self.cache
        self.enabled[region.device] = region.enabled
        self.dtypes[region.device] = region.dtype
        self.depth += 1
        self.cache = region.cache

    def leave(self, region: Region) -> None:
        """Model ``torch.autocast.__exit__``, independent of the exception; the outermost exit clears the cache."""
        self.depth -= 1
        if self.depth == 0:
            self.clear()
        self.enabled[region.device] = region.found_enabled
        self.dtypes[region.device] = region.found_dtype
        self.cache = region.found_cache

    def clear(self) -> None:
        """Model ``torch.clear_autocast_cache`` (at::autocast::clear_cache)."""
        self._copies.clear()

    def change(self, weight: Weight) -> None:
        """Write a weight in place; its cached copy does not change."""
        self.versions[weight] = self.version(weight) + 1

    def version(self, weight: Weight) -> int:
        """Count the in-place writes of a weight."""
        return self.versions.get(weight, 0)

    def clashes(self, device: str, weight: Weight) -> bool:
        """Return whether the cache holds a copy in another dtype: its key is the weight only."""
        copy = self._copies.get(weight)
        low = self.dtypes[device]
        return copy is not None and self.enabled[device] and low in self.facts.low and copy.dtype != low

    def use(self, device: str, weight: Weight, mode: Mode) -> Use:
        """Model a product of float32 tensors: at::autocast::cached_cast and ``lower_precision_fp``."""
        grad = mode is Mode.GRAD
        trained = weight is not Weight.FROZEN
        if not self.enabled[device] or self.dtypes[device] == "float32":  # the dtype of the weights: no cast
            return Use("float32", 0, self.version(weight), trained and grad)
        low = self.dtypes[device]
        inference = mode is Mode.INFERENCE and self.facts.history_kept
        if weight not in CACHED_KINDS or not self.cache or inference:
            return Use(low, 1, self.version(weight), trained and grad)
        casts = 0
        if weight not in self._copies:
            casts = 1
            self._copies[weight] = _Copy(low, self.version(weight), grad or self.facts.history_kept)
        copy = self._copies[weight]
        return Use(low, casts, copy.version, copy.history and grad)
