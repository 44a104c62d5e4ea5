"""Reference model of ``torch.amp.GradScaler``: scale, growth tracker, and the stage of each optimizer.

The model contains no tensors. It describes gradients by their device and by whether they are finite, and predicts the
scale, found-inf, and whether an optimizer steps; from these follow the values of gradients and parameters. Each
docstring names the symbol that it models, in torch/amp/grad_scaler.py unless it names another file.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


def float32(value: float) -> float:
    """Return ``value`` rounded to float32, infinite beyond its range: the scale is a float32 tensor."""
    return _round_trip("f", value)


def float16(value: float) -> float:
    """Return ``value`` rounded to float16, infinite beyond its range."""
    return _round_trip("e", value)


def _round_trip(format_character: str, value: float) -> float:
    """Pack and unpack ``value`` in a format of ``struct``, which rounds it to nearest, ties to even."""
    try:
        (rounded,) = struct.unpack(format_character, struct.pack(format_character, value))
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    assert isinstance(rounded, float)
    return rounded


class Stage(enum.Enum):
    """Stage of an optimizer between two updates (``OptState``)."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class Gradients(enum.Enum):
    """State of an optimizer's gradients: there are none, all are finite, or at least one contains an inf or NaN."""

    NONE = "none"
    FINITE = "finite"
    NON_FINITE = "non-finite"


#: Gradients of an optimizer by device name, or without a name if all its parameters are on one device.
GradientsByDevice: TypeAlias = Gradients | Mapping[str, Gradients]


class Refused(Exception):
    """Predicted error of a call: GradScaler raises an exception of type ``kind`` whose message contains ``words``."""

    def __init__(self, kind: type[Exception], words: str) -> None:
        """Store the type of torch's exception, and a part of its message."""
        super().__init__(f"{kind.__name__}: {words}")
        self.kind = kind
        self.words = words


@dataclass(frozen=True)
class UpdateRule:
    """Rule by which ``update`` changes the scale and the growth tracker.

    The rule is the operator ``_amp_update_scale_``: aten/src/ATen/native/cuda/AmpKernels.cu,
    ``amp_update_scale_cuda_kernel``, and aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp,
    ``_amp_update_scale_cpu_kernel``. The product is computed in double precision; the scale is stored as float32.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def after(self, scale: float, tracker: int, *, found_inf: bool) -> tuple[float, int]:
        """Return scale and tracker after one update.

        An inf reduces the scale and resets the tracker. A step without an inf increments the tracker. If the tracker
        is then *equal* to the growth interval, it is reset, and the scale grows unless it would become infinite.
        If the interval was lowered below the tracker, the scale therefore does not grow until an inf resets the
        tracker.
        """
        if found_inf:
            return float32(scale * self.backoff_factor), 0
        if tracker + 1 != self.growth_interval:
            return scale, tracker + 1
        grown = float32(scale * self.growth_factor)
        return (grown if grown < float("inf") else scale), 0


@dataclass(frozen=True)
class OptimizerState:
    """State of one optimizer since the last update (``_refresh_per_optimizer_state``).

    ``found_inf`` maps each device with checked gradients to whether one of them was nonfinite.
    """

    stage: Stage = Stage.READY
    found_inf: Mapping[str, bool] = field(default_factory=dict)


def _found_inf_by_device(gradients: GradientsByDevice) -> dict[str, bool]:
    """Return found-inf by device (the result of ``_unscale_grads_``).

    torch calls the operator ``_amp_foreach_non_finite_check_and_unscale_`` once for each device and dtype. A device
    without gradients has no entry; without any entry ``step`` raises "No inf checks were recorded".
    """
    by_device = {"": gradients} if isinstance(gradients, Gradients) else gradients
    return {device: kind is Gradients.NON_FINITE for device, kind in by_device.items() if kind is not Gradients.NONE}


@dataclass
class ReferenceScaler:
    """State machine of ``GradScaler``.

    Each method has the name of the method that it models, and raises Refused when that method raises. Optimizers are
    identified by strings. In torch, ``scale_now`` and ``tracker`` are Python numbers before the first ``scale``
    (``initialized`` is False), and a float32 and an int32 tensor after it.
    """

    scale_now: float = 2.0**16
    rule: UpdateRule = UpdateRule()
    tracker: int = 0
    enabled: bool = True
    initialized: bool = False
    optimizers: dict[str, OptimizerState] = field(default_factory=dict)

    def scale(self) -> float:
        """Return the factor for a loss: 1.0 if disabled (``scale``).

        The first call creates torch's float32 tensor, which rounds the scale (``_lazy_init_scale_growth_tracker``).
        """
        if not self.enabled:
            return 1.0
        if not self.initialized:
            self.initialized = True
            self.scale_now = float32(self.scale_now)
        return self.scale_now

    def get_scale(self) -> float:
        """Return the current scale, unrounded before the first ``scale``; 1.0 if disabled (``get_scale``)."""
        return self.scale_now if self.enabled else 1.0

    def stage(self, optimizer: str) -> Stage:
        """Return the optimizer's stage (``_per_optimizer_states``)."""
        return self.optimizers.get(optimizer, OptimizerState()).stage

    def found_inf(self, optimizer: str) -> dict[str, bool]:
        """Return the result of the optimizer's check, by device (``_found_inf_per_device``)."""
        return dict(self.optimizers.get(optimizer, OptimizerState()).found_inf)

    def unscale_(self, optimizer: str, gradients: GradientsByDevice, *, fp16: bool = False) -> None:
        """Unscale the optimizer's gradients and store found-inf for each device (``unscale_``).

        The stage changes from READY to UNSCALED; in any other stage the call raises. ``fp16`` is whether a gradient is
        float16: then the call raises, and the stage remains READY (``_unscale_grads_`` with ``allow_fp16=False``).
        """
        if not self.enabled:
            return
        self._check_initialized("unscale_")
        stage = self._state_of(optimizer).stage
        if stage is Stage.UNSCALED:
            raise Refused(RuntimeError, "unscale_() has already been called on this optimizer since the last update()")
        if stage is Stage.STEPPED:
            raise Refused(RuntimeError, "unscale_() is being called after step()")
        if fp16:
            raise Refused(ValueError, "Attempting to unscale FP16 gradients.")
        self.optimizers[optimizer] = OptimizerState(Stage.UNSCALED, _found_inf_by_device(gradients))

    def step(
        self,
        optimizer: str,
        gradients: GradientsByDevice,
        *,
        fp16: bool = False,
        fused: bool = False,
        closure: bool = False,
    ) -> bool:
        """Return whether the optimizer steps, after unscaling its gradients if needed (``step``).

        A ``fused`` optimizer (one with ``_step_supports_amp_scaling``) receives scale and found-inf
        (``_check_inf_per_device``), and unscales in its kernel. It accepts float16 gradients, leaves the gradients of a
        skipped step scaled, and raises no error without gradients. If it had no gradients at ``unscale_``, but has some
        at ``step``, torch raises AttributeError, because its sum of zero found-inf tensors is the int 0 (torch 2.6 to
        2.14; no upstream issue found).
        """
        if not self.enabled:
            return True
        if closure:
            raise Refused(RuntimeError, "Closure use is not currently supported if GradScaler is enabled.")
        self._check_initialized("step")
        stage = self._state_of(optimizer).stage
        if stage is Stage.STEPPED:
            raise Refused(RuntimeError, "step() has already been called since the last update()")
        if stage is Stage.READY:
            if fused:
                self.optimizers[optimizer] = OptimizerState(Stage.READY, _found_inf_by_device(gradients))
            else:
                self.unscale_(optimizer, gradients, fp16=fp16)
        found_inf = self.optimizers[optimizer].found_inf
        if not found_inf and not fused:
            raise Refused(AssertionError, "No inf checks were recorded for this optimizer")
        if fused and not found_inf and _found_inf_by_device(gradients):
            raise Refused(AttributeError, "'int' object has no attribute 'device'")
        self.optimizers[optimizer] = OptimizerState(Stage.STEPPED, found_inf)
        return not any(found_inf.values())

    def update(self, new_scale: float | None = None, *, usable: bool = True) -> None:
        """Set the scale to ``new_scale``, or else by the rule, and reset every optimizer to READY (``update``).

        An inf of any optimizer on any device reduces the scale. ``usable`` is False if ``new_scale`` represents a
        tensor that torch rejects: one on another device type, with several elements, or with ``requires_grad``. torch
        uses an int as if it were a tensor, and raises AttributeError (torch 2.6 to 2.14; no upstream issue found).
        """
        if not self.enabled:
            return
        self._check_initialized("update")
        if not usable:
            raise Refused(AssertionError, "new_scale should be a float or a 1-element")
        if isinstance(new_scale, int):
            raise Refused(AttributeError, "'int' object has no attribute 'device'")
        if new_scale is not None:
            self.scale_now = float32(new_scale)
        else:
            checked = [is_inf for state in self.optimizers.values() for is_inf in state.found_inf.values()]
            if not checked:
                raise Refused(AssertionError, "No inf checks were recorded prior to update")
            self.scale_now, self.tracker = self.rule.after(self.scale_now, self.tracker, found_inf=any(checked))
        self.optimizers = {}

    def state_dict(self) -> dict[str, float | int]:
        """Return the result of ``state_dict``: the scale, the rule and the tracker; empty for a disabled scaler."""
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
        """Load scale, rule and tracker; the optimizers' stages are unchanged (``load_state_dict``)."""
        if not self.enabled:
            return
        if not state:
            raise Refused(RuntimeError, "The source state dict is empty")
        self.scale_now = float32(state["scale"]) if self.initialized else state["scale"]
        growth, backoff = state["growth_factor"], state["backoff_factor"]
        self.rule = UpdateRule(growth, backoff, int(state["growth_interval"]))
        self.tracker = int(state["_growth_tracker"])

    def pickled(self) -> ReferenceScaler:
        """Return the result of pickling and unpickling: the same state, not initialized (``__getstate__``)."""
        if self.optimizers:
            raise Refused(AssertionError, "may only be pickled at the beginning of an iteration")
        return ReferenceScaler(self.scale_now, self.rule, self.tracker, self.enabled)

    def _check_initialized(self, method: str) -> None:
        """Raise Refused before the first ``scale`` (``_check_scale_growth_tracker``)."""
        if not self.initialized:
            raise Refused(AssertionError, f"Attempted {method} but _scale is None")

    def _state_of(self, optimizer: str) -> OptimizerState:
        """Return the optimizer's state; it is stored even if the call then raises (``_per_optimizer_states``)."""
        return self.optimizers.setdefault(optimizer, OptimizerState())
