"""Random but seeded programs of GradScaler calls, run by the real scaler and by the reference model side by side."""

from __future__ import annotations

import math
import pickle
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from pytest_amp.devices import Device
from pytest_amp.precision import FP16, Precision
from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage, UpdateRule, float32

_INPUTS = (1.0, -2.0, 3.0, 5.0)
_RATE = 0.5


def _rounded(precision: Precision, value: float) -> float:
    """``value``, a small integer times a power of two, in the autocast dtype: only fp16's range can change it."""
    if precision != FP16:
        return value
    try:
        (rounded,) = struct.unpack("e", struct.pack("e", value))
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return float(rounded)


def _same(left: list[float] | None, right: list[float] | None) -> bool:
    """Equality for which NaN equals NaN."""
    if left is None or right is None:
        return left is right
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(left, right, strict=True))


@dataclass
class _Side:
    """One optimizer's parameter, really and in the model."""

    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    values: list[float] = field(default_factory=lambda: [1.0] * len(_INPUTS))
    gradients: list[float] | None = None

    @property
    def kind(self) -> Gradients:
        """What the model is told of the gradients."""
        if self.gradients is None:
            return Gradients.NONE
        finite = all(math.isfinite(g) for g in self.gradients)
        return Gradients.FINITE if finite else Gradients.NON_FINITE


class Program:
    """Draws calls from ``seed`` and makes each of them on both sides; ``log`` has what was called."""

    def __init__(self, device: Device, precision: Precision, scaler: torch.amp.GradScaler, *, seed: int) -> None:
        """``scaler`` is fresh, on ``device``, its scale and factors powers of two; the model starts where it is."""
        self.device, self.precision = device, precision
        self.real, self.random = scaler, random.Random(seed)  # noqa: S311  # a reproducible program
        saved = scaler.state_dict()
        rule = UpdateRule(saved["growth_factor"], saved["backoff_factor"], saved["growth_interval"])
        self.model = ReferenceScaler(saved["scale"], rule)
        self.sides: dict[str, _Side] = {}
        for name in "ab"[: self.random.choice((1, 2))]:
            parameter = nn.Parameter(torch.ones(len(_INPUTS), 1, device=device.torch_device))
            self.sides[name] = _Side(parameter, torch.optim.SGD([parameter], lr=_RATE))
        self.log: list[str] = []

    def run(self, calls: int) -> None:
        """Make ``calls`` calls; raises AssertionError at the first disagreement, with the program so far."""
        weights = {
            self._backward: 6,
            self._plant: 1,
            self._unscale: 3,
            self._step: 5,
            self._update: 4,
            self._zero_grad: 2,
            self._new_scale: 0.5,
            self._set_rule: 0.5,
            self._save_and_load: 0.5,
            self._pickle: 0.5,
        }
        for _ in range(calls):
            (call,) = self.random.choices(list(weights), list(weights.values()))
            call()
            self._compare()

    def _side(self) -> tuple[str, _Side]:
        name = self.random.choice(list(self.sides))
        return name, self.sides[name]

    def _both(self, call: str, real: Callable[[], object], model: Callable[[], object]) -> object:
        """Make one call on both sides; the model's answer, or None where both refuse in the same words."""
        self.log.append(call)
        try:
            answer: object = model()
            refused = None
        except Refused as error:
            answer, refused = None, error
        try:
            real()
            raised = None
        except (RuntimeError, AssertionError) as error:
            raised = error
        kinds = (refused.kind if refused else None, type(raised) if raised else None)
        same = kinds[0] is kinds[1] and (refused.words if refused else "") in str(raised)
        assert same, self._tell(f"{type(raised).__name__}: {raised}", str(refused))
        return answer

    def _backward(self) -> None:
        """A scaled backward of one optimizer's product: its gradient accumulates, rounded to the autocast dtype."""
        name, side = self._side()
        self.log.append(f"backward {name}")
        row = torch.tensor([_INPUTS], device=side.parameter.device)
        with self.device.autocast(self.precision.dtype):
            loss = torch.mm(row, side.parameter)
        self.real.scale(loss.float().sum()).backward()  # type: ignore[no-untyped-call]
        scale = _rounded(self.precision, self.model.scale())
        before = side.gradients or [0.0] * len(_INPUTS)
        new = [_rounded(self.precision, scale * x) for x in _INPUTS]
        side.gradients = [float32(old + x) for old, x in zip(before, new, strict=True)]

    def _plant(self) -> None:
        name, side = self._side()
        if side.gradients is None or side.parameter.grad is None:
            return
        index, bad = self.random.randrange(len(_INPUTS)), self.random.choice((float("inf"), float("nan")))
        self.log.append(f"plant {bad} in {name}")
        side.parameter.grad[index, 0] = side.gradients[index] = bad

    def _unscale(self) -> None:
        name, side = self._side()
        factor, before = self.model.get_scale(), self.model.stage(name)
        self._both(
            f"unscale_ {name}",
            lambda: self.real.unscale_(side.optimizer),
            lambda: self.model.unscale_(name, side.kind),
        )
        self._divide_if_left_ready(name, before, factor)

    def _step(self) -> None:
        name, side = self._side()
        factor, before = self.model.get_scale(), self.model.stage(name)
        steps = self._both(
            f"step {name}", lambda: self.real.step(side.optimizer), lambda: self.model.step(name, side.kind)
        )
        self._divide_if_left_ready(name, before, factor)
        if steps and side.gradients is not None:
            side.values = [float32(value - _RATE * g) for value, g in zip(side.values, side.gradients, strict=True)]

    def _divide_if_left_ready(self, name: str, before: Stage, factor: float) -> None:
        """An optimizer's gradients are divided when it leaves the stage READY, by whichever call, and never again."""
        side = self.sides[name]
        if before is Stage.READY and self.model.stage(name) is not Stage.READY and side.gradients is not None:
            side.gradients = [float32(g / factor) for g in side.gradients]

    def _update(self) -> None:
        self._both("update", self.real.update, self.model.update)

    def _new_scale(self) -> None:
        new = 2.0 ** self.random.randrange(0, 13)
        form: float | torch.Tensor = new
        if self.random.random() < 0.5:
            form = torch.tensor(new, device=self.device.torch_device)
        self._both(f"update({form})", lambda: self.real.update(form), lambda: self.model.update(new))

    def _set_rule(self) -> None:
        rule = UpdateRule(
            self.random.choice((2.0, 4.0)), self.random.choice((0.5, 0.25)), self.random.choice((1, 2, 3, 5))
        )
        self.log.append(str(rule))
        self.real.set_growth_factor(rule.growth_factor)
        self.real.set_backoff_factor(rule.backoff_factor)
        self.real.set_growth_interval(rule.growth_interval)
        self.model.rule = rule

    def _zero_grad(self) -> None:
        name, side = self._side()
        self.log.append(f"zero_grad {name}")
        side.optimizer.zero_grad()
        side.gradients = None

    def _save_and_load(self) -> None:
        """Into the scaler itself, or into a fresh one, which forgets the optimizers' stages."""
        saved, modelled = self.real.state_dict(), self.model.state_dict()
        assert saved == modelled, self._tell(str(saved), str(modelled))
        if self.random.random() < 0.5:
            self._both(
                "load_state_dict",
                lambda: self.real.load_state_dict(saved),
                lambda: self.model.load_state_dict(modelled),
            )
            return
        self.log.append("load_state_dict into a fresh scaler")
        self.real, self.model = torch.amp.GradScaler(self.device.type), ReferenceScaler()
        self.real.load_state_dict(saved)
        self.model.load_state_dict(modelled)

    def _pickle(self) -> None:
        copies: list[torch.amp.GradScaler] = []
        model = self._both(
            "pickle",
            lambda: copies.append(pickle.loads(pickle.dumps(self.real))),  # noqa: S301  # pickled just now
            self.model.pickled,
        )
        if isinstance(model, ReferenceScaler):
            (self.real,), self.model = copies, model

    def _compare(self) -> None:
        """Scale, tracker, gradients and parameters agree, to the last bit."""
        saved, modelled = self.real.state_dict(), self.model.state_dict()
        assert saved == modelled, self._tell(str(saved), str(modelled))
        for name, side in self.sides.items():
            values = side.parameter.detach().flatten().tolist()
            assert _same(values, side.values), self._tell(f"{name} = {values}", f"{name} = {side.values}")
            found = None if side.parameter.grad is None else side.parameter.grad.flatten().tolist()
            assert _same(found, side.gradients), self._tell(f"{name}.grad = {found}", f"{side.gradients}")

    def _tell(self, real: str, model: str) -> str:
        return f"after {len(self.log)} calls GradScaler has {real}; the model has {model}; calls: {'; '.join(self.log)}"
