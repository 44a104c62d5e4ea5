"""Comparison of the real GradScaler with the reference model: each call is made on both.

Values are small integers times powers of two, so that the effect of a call on gradients and parameters is known to the
last bit, float16 gradients and overflow included.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pytest_amp.devices import Device
from pytest_amp.precision import FP16, Precision
from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage, UpdateRule, float16, float32
from pytest_amp.text.amounts import counted
from pytest_amp.torch_private import found_infs, optimizer_stage, scales_its_own_step

_INPUTS = (1.0, -2.0, 3.0, 5.0)
_RATE = 0.5

#: Implementation of SGD, and dtype of its parameter.
KINDS = ("loop", "foreach", "fused", "loop fp16", "fused fp16")


def _same(left: Sequence[float] | None, right: Sequence[float] | None) -> bool:
    """Return whether the values are equal, with NaN equal to NaN."""
    if left is None or right is None:
        return left is right
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(left, right, strict=True))


@dataclass
class Lane:
    """Optimizer and its parameter, real and modelled."""

    name: str
    kind: str
    device: Device
    values: list[float] = field(default_factory=lambda: [1.0] * len(_INPUTS))
    gradients: list[float] | None = None

    def __post_init__(self) -> None:
        """Create the parameter and the optimizer."""
        start = torch.ones(len(_INPUTS), 1, device=self.device.torch_device)
        self.parameter = nn.Parameter(start.half() if self.fp16 else start)
        implementation = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
        keywords = implementation[self.kind.split()[0]]
        self.optimizer = torch.optim.SGD([self.parameter], lr=_RATE, **keywords)
        self.fused = scales_its_own_step(self.optimizer)

    @property
    def fp16(self) -> bool:
        """Return whether parameter and gradients are float16."""
        return self.kind.endswith("fp16")

    def rounded(self, value: float) -> float:
        """Return ``value`` in the parameter's dtype; arithmetic is float32, with results rounded to float16."""
        return float16(float32(value)) if self.fp16 else float32(value)

    @property
    def finite(self) -> Gradients:
        """Return the description of the gradients for the model."""
        if self.gradients is None:
            return Gradients.NONE
        return Gradients.FINITE if all(map(math.isfinite, self.gradients)) else Gradients.NON_FINITE

    def multiply(self, factor: float) -> list[float] | None:
        """Multiply the model's gradients by ``factor``; return the products in float32, None without gradients."""
        if self.gradients is None:
            return None
        products = [float32(g * factor) for g in self.gradients]
        self.gradients = [self.rounded(product) for product in products]
        return products


class SideBySide:
    """Real scaler and its model, with one to three optimizers that share it; ``log`` lists the calls.

    Every method raises AssertionError if the two disagree, with the calls so far.
    """

    def __init__(self, device: Device, precision: Precision, model: ReferenceScaler, kinds: Sequence[str]) -> None:
        """Start both from ``model``, whose scale and factors must be powers of two."""
        self.device, self.precision, self.model = device, precision, model
        rule = model.rule
        self.real = torch.amp.GradScaler(
            device.type,
            init_scale=model.scale_now,
            growth_factor=rule.growth_factor,
            backoff_factor=rule.backoff_factor,
            growth_interval=rule.growth_interval,
            enabled=model.enabled,
        )
        self.lanes = [Lane("abc"[index], kind, device) for index, kind in enumerate(kinds)]
        self.log = [f"{model.enabled=} {model.scale_now=} {rule} {kinds}"]

    def _low(self, value: float) -> float:
        """Return ``value`` in the autocast dtype: only fp16's range can change it."""
        return float16(value) if self.precision == FP16 else value

    def _both(self, call: str, real: Callable[[], object], model: Callable[[], object]) -> object:
        """Make one call on both sides; return the model's result, or None if both refuse in the same words."""
        self.log.append(call)
        answer: object = None
        refused: Refused | None = None
        raised: Exception | None = None
        try:
            answer = model()
        except Refused as error:
            refused = error
        try:
            real()
        except (RuntimeError, AssertionError, ValueError, AttributeError) as error:
            raised = error
        kinds = (refused.kind if refused else None, type(raised) if raised else None)
        same = kinds[0] is kinds[1] and (refused.words if refused else "") in str(raised)
        assert same, self._tell(f"{type(raised).__name__}: {raised}", str(refused))
        return answer

    def scale(self, form: str) -> None:
        """Scale a tensor, a list, a nested tuple, or a generator of vectors: all are multiplied."""
        self.log.append(f"scale {form}")
        one = torch.tensor(_INPUTS, device=self.device.torch_device)
        real: Any = self.real
        scaled: dict[str, Callable[[], list[torch.Tensor]]] = {
            "tensor": lambda: [real.scale(one)],
            "list": lambda: real.scale([one, one]),
            "nested": lambda: [
                x for part in real.scale((one, [one])) for x in (part if type(part) is list else [part])
            ],
            "generator": lambda: list(real.scale(one for _ in range(2))),
        }
        results = scaled[form]()
        factor = self.model.scale()
        expected = [float32(x * factor) for x in _INPUTS]
        for result in results:
            assert _same(result.tolist(), expected), self._tell(f"scaled {result.tolist()}", f"{expected}")

    def backward(self, lanes: Sequence[int], *, together: bool) -> None:
        """Run a scaled backward through products in the autocast dtype; ``together`` scales a list of the losses."""
        chosen = [self.lanes[i] for i in dict.fromkeys(i % len(self.lanes) for i in lanes)]
        self.log.append(f"backward {''.join(lane.name for lane in chosen)}{' as a list' if together else ''}")
        losses = []
        for lane in chosen:
            row = torch.tensor([_INPUTS], device=lane.parameter.device)
            with self.device.autocast(self.precision.dtype):
                losses.append(torch.mm(row, lane.parameter).float().sum())
        real: Any = self.real
        scaled = real.scale(losses) if together else [real.scale(loss) for loss in losses]
        backward: Any = torch.autograd.backward
        backward(scaled)
        scale = self._low(self.model.scale())
        for lane in chosen:
            before = lane.gradients or [0.0] * len(_INPUTS)
            new = [lane.rounded(self._low(scale * x)) for x in _INPUTS]
            lane.gradients = [lane.rounded(old + x) for old, x in zip(before, new, strict=True)]

    def plant(self, lane: Lane, index: int, bad: float) -> None:
        """Set one gradient to inf or NaN."""
        if lane.gradients is None or lane.parameter.grad is None:
            return
        self.log.append(f"plant {bad} in {lane.name}")
        lane.parameter.grad[index, 0] = lane.gradients[index] = bad

    def clip_value(self, lane: Lane, bound: float) -> None:
        """Call ``clip_grad_value_``, at any point: it makes an inf finite, and leaves a NaN."""
        if lane.gradients is None:  # torch refuses to clip without gradients
            return
        self.log.append(f"clip value {lane.name}")
        nn.utils.clip_grad_value_([lane.parameter], bound)
        lane.gradients = [g if math.isnan(g) else min(max(g, -bound), bound) for g in lane.gradients]

    def clip_norm(self, lane: Lane) -> None:
        """Call ``clip_grad_norm_`` with half of the norm: exact, except for the 1e-6 that it adds to the norm."""
        if lane.gradients is None or lane.finite is not Gradients.FINITE or lane.fp16:
            return
        norm = math.sqrt(sum(g * g for g in lane.gradients))
        self.log.append(f"clip norm {lane.name}")
        norm_of_scaled = float(nn.utils.clip_grad_norm_([lane.parameter], norm / 2))
        assert math.isclose(norm_of_scaled, norm, rel_tol=1e-5, abs_tol=2.0**-120), self._tell(
            f"norm {norm_of_scaled}", f"{norm}"
        )
        assert lane.parameter.grad is not None
        clipped = lane.parameter.grad.flatten().tolist()
        factor = min(1.0, norm / 2 / (norm + 1e-6))
        expected = [g * factor for g in lane.gradients]
        close = all(math.isclose(a, b, rel_tol=1e-5, abs_tol=2.0**-120) for a, b in zip(clipped, expected, strict=True))
        assert close, self._tell(f"clipped {clipped}", f"{expected}")
        # Not exact, so the gradients are reset to powers of two.
        lane.gradients = [math.copysign(1.0, g) for g in lane.gradients]
        lane.parameter.grad.copy_(torch.tensor(lane.gradients)[:, None])

    def unscale_(self, lane: Lane) -> None:
        """Call ``unscale_`` for one optimizer."""
        before = self.model.stage(lane.name)
        self._both(
            f"unscale_ {lane.name}",
            lambda: self.real.unscale_(lane.optimizer),
            lambda: self.model.unscale_(lane.name, lane.finite, fp16=lane.fp16 and lane.gradients is not None),
        )
        self._divide_if_left_ready(lane, before)

    def step(self, lane: Lane, *, closure: bool) -> None:
        """Call ``step`` for one optimizer; with a closure, as a keyword, it is refused."""
        before = self.model.stage(lane.name)
        keywords: dict[str, Any] = {"closure": lambda: torch.zeros(())} if closure else {}
        fp16 = lane.fp16 and lane.gradients is not None
        steps = self._both(
            f"step {lane.name}{' with a closure' if closure else ''}",
            lambda: self.real.step(lane.optimizer, **keywords),
            lambda: self.model.step(lane.name, lane.finite, fp16=fp16, fused=lane.fused, closure=closure),
        )
        for left_behind in ("grad_scale", "found_inf"):  # by a fused step that raised
            vars(lane.optimizer).pop(left_behind, None)
        applied = self._divide_if_left_ready(lane, before) if not lane.fused or steps else None
        if steps and lane.gradients is not None:
            # A fused kernel stores the quotients in float16, and applies them in float32, where they may be finite.
            gradients = applied if lane.fused and applied is not None else lane.gradients
            lane.values = [lane.rounded(value - _RATE * g) for value, g in zip(lane.values, gradients, strict=True)]

    def _divide_if_left_ready(self, lane: Lane, before: Stage) -> list[float] | None:
        """Divide gradients when their optimizer leaves READY, by whichever call, and never again.

        Return the quotients in float32; None if nothing is divided.
        """
        if before is not Stage.READY or self.model.stage(lane.name) is Stage.READY:
            return None
        return lane.multiply(1 / self.model.get_scale())

    def update(self) -> None:
        """Call ``update`` by the rule."""
        self._both("update", self.real.update, self.model.update)

    def new_scale(self, new: float, form: str) -> None:
        """Call ``update`` with a float, a tensor, an invalid tensor, or an int, which is invalid as well."""
        device = self.device.torch_device
        arguments: dict[str, float | torch.Tensor] = {
            "float": new,
            "int": int(new),
            "tensor": torch.tensor(new, device=device),
            "vector": torch.full((2,), new, device=device),
            "requires grad": torch.tensor(new, device=device, requires_grad=True),
        }
        usable = form in ("float", "tensor", "int")
        self._both(
            f"update({new}) as {form}",
            lambda: self.real.update(arguments[form]),
            lambda: self.model.update(int(new) if form == "int" else new, usable=usable),
        )

    def set_rule(self, rule: UpdateRule) -> None:
        """Call all three setters; ``compare`` reads the getters."""
        if not self.model.enabled:  # a disabled scaler has no factors
            return
        self.log.append(str(rule))
        self.real.set_growth_factor(rule.growth_factor)
        self.real.set_backoff_factor(rule.backoff_factor)
        self.real.set_growth_interval(rule.growth_interval)
        self.model.rule = rule

    def zero_grad(self, lane: Lane, *, to_none: bool) -> None:
        """Call ``zero_grad``, to None or to zeros, which are gradients."""
        self.log.append(f"zero_grad {lane.name}{'' if to_none else ' to zeros'}")
        lane.optimizer.zero_grad(set_to_none=to_none)
        if to_none or lane.gradients is None:
            lane.gradients = None
        else:
            lane.gradients = [0.0] * len(_INPUTS)

    def save_and_load(self, *, fresh: bool) -> None:
        """Load the state into the scaler itself, or into a fresh one, which forgets the optimizers' stages."""
        saved, modelled = self.real.state_dict(), self.model.state_dict()
        if fresh:
            self.log.append("a fresh scaler")
            self.real = torch.amp.GradScaler(self.device.type, enabled=self.model.enabled)
            self.model = ReferenceScaler(enabled=self.model.enabled)
        self._both(
            "load_state_dict", lambda: self.real.load_state_dict(saved), lambda: self.model.load_state_dict(modelled)
        )

    def load_nothing(self) -> None:
        """Load the state dict of a disabled scaler."""
        self._both("load {}", lambda: self.real.load_state_dict({}), lambda: self.model.load_state_dict({}))

    def pickle(self) -> None:
        """Pickle and unpickle; continue with the copy."""
        copies: list[torch.amp.GradScaler] = []
        model = self._both(
            "pickle",
            lambda: copies.append(pickle.loads(pickle.dumps(self.real))),  # noqa: S301  # pickled just now
            self.model.pickled,
        )
        if isinstance(model, ReferenceScaler):
            (self.real,), self.model = copies, model

    def compare(self) -> None:
        """Compare scale, tracker, factors, stages, found-infs, gradients and parameters, to the last bit."""
        self._agree(self.real.state_dict(), self.model.state_dict())
        self._agree((self.real.is_enabled(), self.real.get_scale()), (self.model.enabled, self.model.get_scale()))
        if self.model.enabled:
            rule = self.model.rule
            getters = self.real.get_growth_factor(), self.real.get_backoff_factor(), self.real.get_growth_interval()
            self._agree(getters, (rule.growth_factor, rule.backoff_factor, rule.growth_interval))
        for lane in self.lanes:
            stages = optimizer_stage(self.real, lane.optimizer), self.model.stage(lane.name).value
            self._agree(*stages)
            infs = list(found_infs(self.real, lane.optimizer).values())
            self._agree(infs, list(self.model.found_inf(lane.name).values()))
            values = lane.parameter.detach().flatten().tolist()
            assert _same(values, lane.values), self._tell(f"{lane.name} = {values}", f"{lane.name} = {lane.values}")
            grad = lane.parameter.grad
            gradients = None if grad is None else grad.flatten().tolist()
            assert _same(gradients, lane.gradients), self._tell(f"{lane.name}.grad = {gradients}", f"{lane.gradients}")

    def _agree(self, real: object, model: object) -> None:
        assert real == model, self._tell(str(real), str(model))

    def _tell(self, real: str, model: str) -> str:
        calls = "; ".join(self.log)
        return f"after {counted(len(self.log), 'call')} GradScaler has {real}; the model has {model}; calls: {calls}"
