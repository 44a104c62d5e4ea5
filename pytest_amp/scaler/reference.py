"""A reference model of ``torch.amp.GradScaler``: scale, growth tracker, and the stage of each optimizer.

It holds no tensors. Of gradients it is told only whether there are any and whether they are finite;
what becomes of gradients and parameters follows from what it answers.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field, replace


def float32(value: float) -> float:
    """``value`` rounded to float32, to infinity where it is too large: the scale is a float32 tensor."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    assert isinstance(rounded, float)
    return rounded


class Stage(enum.Enum):
    """Where an optimizer is between two updates (``OptState`` in torch/amp/grad_scaler.py)."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class Gradients(enum.Enum):
    """What an optimizer's gradients are: none at all, all finite, or with an inf or NaN in one of them."""

    NONE = "none"
    FINITE = "finite"
    NON_FINITE = "non-finite"


class Refused(Exception):
    """The call is an error: the real scaler raises ``kind``, and its message has ``words`` in it."""

    def __init__(self, kind: type[Exception], words: str) -> None:
        """``words`` are those that users search for."""
        super().__init__(f"{kind.__name__}: {words}")
        self.kind = kind
        self.words = words


@dataclass(frozen=True)
class UpdateRule:
    """When and by how much the scale changes.

    The rule is the operator ``_amp_update_scale_``: aten/src/ATen/native/cuda/AmpKernels.cu,
    ``amp_update_scale_cuda_kernel``, and aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp,
    ``_amp_update_scale_cpu_kernel``. Products are double, the stored scale is float32.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def after(self, scale: float, tracker: int, *, found_inf: bool) -> tuple[float, int]:
        """Scale and tracker after one update.

        An inf backs off and restarts the count. A clean step counts; the step that makes the count
        *equal* to the interval grows the scale, unless that would make it infinite, and restarts the
        count either way. A count that is already past a lowered interval therefore never grows it.
        """
        if found_inf:
            return float32(scale * self.backoff_factor), 0
        if tracker + 1 != self.growth_interval:
            return scale, tracker + 1
        grown = float32(scale * self.growth_factor)
        return (grown if grown < float("inf") else scale), 0


@dataclass(frozen=True)
class _Optimizer:
    """One optimizer since the last update; ``found_inf`` is None while nothing was checked."""

    stage: Stage = Stage.READY
    found_inf: bool | None = None


@dataclass
class ReferenceScaler:
    """The state machine of ``GradScaler`` in torch/amp/grad_scaler.py.

    Each method has the name of the method that it models, and raises Refused where that one raises.
    Optimizers are named by any string.
    """

    scale_now: float = 2.0**16
    rule: UpdateRule = UpdateRule()
    tracker: int = 0
    enabled: bool = True
    initialized: bool = False
    optimizers: dict[str, _Optimizer] = field(default_factory=dict)

    def scale(self) -> float:
        """The factor for a loss. The first call makes the tensors (``_lazy_init_scale_growth_tracker``)."""
        if not self.enabled:
            return 1.0
        self.initialized = True
        return self.scale_now

    def get_scale(self) -> float:
        """The current scale; 1.0 where the scaler is disabled."""
        return self.scale_now if self.enabled else 1.0

    def stage(self, optimizer: str) -> Stage:
        """The optimizer's stage."""
        return self.optimizers.get(optimizer, _Optimizer()).stage

    def unscale_(self, optimizer: str, gradients: Gradients) -> None:
        """Divide the optimizer's gradients by the scale once, and note whether one was not finite (``unscale_``)."""
        if not self.enabled:
            return
        self._check_initialized("unscale_")
        found = self.optimizers.setdefault(optimizer, _Optimizer())
        if found.stage is Stage.UNSCALED:
            raise Refused(RuntimeError, "unscale_() has already been called on this optimizer since the last update()")
        if found.stage is Stage.STEPPED:
            raise Refused(RuntimeError, "unscale_() is being called after step()")
        found_inf = None if gradients is Gradients.NONE else gradients is Gradients.NON_FINITE
        self.optimizers[optimizer] = _Optimizer(Stage.UNSCALED, found_inf)

    def step(self, optimizer: str, gradients: Gradients) -> bool:
        """Whether the optimizer steps; first its gradients are unscaled, if that was not done (``step``)."""
        if not self.enabled:
            return True
        self._check_initialized("step")
        if self.stage(optimizer) is Stage.STEPPED:
            self.optimizers.setdefault(optimizer, _Optimizer())
            raise Refused(RuntimeError, "step() has already been called since the last update()")
        if self.stage(optimizer) is Stage.READY:
            self.unscale_(optimizer, gradients)
        found = self.optimizers[optimizer]
        if found.found_inf is None:
            raise Refused(AssertionError, "No inf checks were recorded for this optimizer")
        self.optimizers[optimizer] = replace(found, stage=Stage.STEPPED)
        return not found.found_inf

    def update(self, new_scale: float | None = None) -> None:
        """Set the scale, to ``new_scale`` or by the rule, and make every optimizer ready again (``update``)."""
        if not self.enabled:
            return
        self._check_initialized("update")
        if new_scale is not None:
            self.scale_now = float32(new_scale)
        else:
            checked = [found.found_inf for found in self.optimizers.values() if found.found_inf is not None]
            if not checked:
                raise Refused(AssertionError, "No inf checks were recorded prior to update")
            self.scale_now, self.tracker = self.rule.after(self.scale_now, self.tracker, found_inf=any(checked))
        self.optimizers = {}

    def state_dict(self) -> dict[str, float | int]:
        """What ``state_dict`` gives: the scale, the rule and the tracker; nothing of a disabled scaler."""
        if not self.enabled:
            return {}
        return {
            "scale": self.scale_now,
            "growth_factor": self.rule.growth_factor,
            "backoff_factor": self.rule.backoff_factor,
            "growth_interval": self.rule.growth_interval,
            "_growth_tracker": self.tracker,
        }

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Take over scale, rule and tracker; the optimizers' stages stay (``load_state_dict``)."""
        if not self.enabled:
            return
        if not state:
            raise Refused(RuntimeError, "The source state dict is empty")
        self.scale_now = float32(state["scale"])
        growth, backoff = state["growth_factor"], state["backoff_factor"]
        self.rule = UpdateRule(growth, backoff, int(state["growth_interval"]))
        self.tracker = int(state["_growth_tracker"])

    def pickled(self) -> ReferenceScaler:
        """What pickling and unpickling gives: the same state, not initialized (``__getstate__``)."""
        if self.enabled and self.optimizers:
            raise Refused(AssertionError, "may only be pickled at the beginning of an iteration")
        return ReferenceScaler(self.scale_now, self.rule, self.tracker, self.enabled)

    def _check_initialized(self, method: str) -> None:
        """``_check_scale_growth_tracker``."""
        if not self.initialized:
            raise Refused(AssertionError, f"Attempted {method} but _scale is None")
