"""GradScaler that notes which of its methods a training step calls, from which line, and the result of the step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp.numerics.callers import Author, author_of, calling_line
from pytest_amp.numerics.errors import dense
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.text.table import as_table
from pytest_amp.torch_private import found_infs


@dataclass(frozen=True)
class TraceStep:
    """Trace of one iteration: the scale that its loss was multiplied by, and the result.

    ``found_inf`` is the result of the scaler's check of any optimizer's gradients, ``skipped`` whether ``step`` was
    called and no parameter changed. ``scale_after`` and ``growth_tracker`` are those after the iteration.
    """

    scale: float
    found_inf: bool
    skipped: bool
    scale_after: float
    growth_tracker: int


@dataclass(frozen=True)
class OptimizerStep:
    """Call of ``scaler.step``: its optimizer, whether the check found an inf or NaN, and whether a parameter changed.

    ``round`` is the number of updates before the call in the same iteration. ``has_gradients`` is False if all
    gradients are zero or missing, ``has_rate`` if all learning rates are zero.
    """

    optimizer: torch.optim.Optimizer
    found_inf: bool
    moved: bool
    round: int
    has_gradients: bool = True
    has_rate: bool = True


class ScalerTrace(tuple[TraceStep, ...]):
    """Trace of a run with a scaler; prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the table."""
        rows = [
            (str(index), f"{step.scale:g}", *("yes" if flag else "" for flag in (step.found_inf, step.skipped)),
             f"{step.scale_after:g}", str(step.growth_tracker))
            for index, step in enumerate(self)
        ]  # fmt: skip
        return as_table(("iteration", "scale", "found inf", "skipped", "scale after", "growth tracker"), rows)


class WatchedScaler(torch.amp.GradScaler):
    """GradScaler that notes the calls of an iteration, and the results of its checks."""

    def __init__(self, device_type: str, scale: float, rule: UpdateRule, *, enabled: bool = True) -> None:
        """Create a scaler that starts from ``scale``, enabled by default."""
        super().__init__(
            device_type,
            enabled=enabled,
            init_scale=scale,
            growth_factor=rule.growth_factor,
            backoff_factor=rule.backoff_factor,
            growth_interval=rule.growth_interval,
        )
        #: Parameters that an optimizer stepped in the first iteration.
        self.stepped_before: set[torch.Tensor] = set()
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, without calls."""
        self.called: list[str] = []
        #: User's line of each call, by method.
        self.lines: dict[str, list[str]] = {}
        #: Scaled losses: before scaling, and weak references to the results.
        self.losses: list[torch.Tensor] = []
        self._scaled_losses: list[weakref.ref[torch.Tensor]] = []
        #: Dtypes of the scaled tensors.
        self.scaled: set[torch.dtype] = set()
        self.found_inf = False
        self.stepping: torch.optim.Optimizer | None = None
        self.moved = False
        #: Calls of ``step``, and found-inf of each round of calls that an update ends.
        self.steps: list[OptimizerStep] = []
        self.rounds: list[bool] = []
        self._found_in_round = False
        self.refused: Exception | None = None
        self.has_closure = False

    @contextmanager
    def _noting(self, method: str) -> Iterator[None]:
        self.called.append(method)
        self.note_line(method)
        try:
            yield
        except (RuntimeError, AssertionError, ValueError) as error:
            self.refused = error
            raise

    def scale(self, outputs: Any) -> Any:
        """Scale as GradScaler does, and note the loss."""
        self.note_line("scale")
        if not isinstance(outputs, torch.Tensor):
            return super().scale(outputs)
        self.scaled.add(outputs.dtype)
        self.losses.append(outputs.detach())
        scaled = super().scale(outputs)
        self._scaled_losses.append(weakref.ref(scaled))
        return scaled

    def get_scale(self) -> float:
        """Return the scale as GradScaler does, and note the line that reads it."""
        author = author_of(sys._getframe(1).f_code.co_filename)  # noqa: SLF001  # inspect.currentframe is the same
        if author in (Author.USER, Author.LIBRARY):
            self.note_line("get_scale")
        return super().get_scale()

    def note_line(self, method: str) -> None:
        """Note the user's line that calls a method."""
        line = calling_line()
        if line is not None:
            self.lines.setdefault(method, []).append(line)

    def has_scaled(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` is a result of ``scale`` in this iteration."""
        return any(reference() is tensor for reference in self._scaled_losses)

    @property
    def last_line(self) -> str | None:
        """Return the user's line of the last call of ``unscale_``, ``step`` or ``update``."""
        lines = self.lines.get(self.called[-1], []) if self.called else []
        return lines[-1] if lines else None

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale as GradScaler does, and note the call and its found-infs."""
        with self._noting("unscale_"):
            super().unscale_(optimizer)
        self._note_found_inf(optimizer)

    def _note_found_inf(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note the results of an optimizer's check, and return whether it found an inf or NaN."""
        found_inf = any(found_infs(self, optimizer).values())
        self._found_in_round |= found_inf
        self.found_inf |= found_inf
        return found_inf

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step as GradScaler does, and note the call, its found-infs, and whether a parameter changed."""
        before = [p.detach().clone() for p in parameters_of(optimizer)]
        has_rate = any(bool(group.get("lr", 1.0) != 0) for group in optimizer.param_groups)
        self.stepping = optimizer
        self.has_closure |= any(argument is not None for argument in (*args, kwargs.get("closure")))
        try:
            with self._noting("step"):
                result = super().step(optimizer, *args, **kwargs)
        finally:
            self.stepping = None
        found_inf, after = self._note_found_inf(optimizer), parameters_of(optimizer)
        moved = not _all_identical(before, after)
        self.moved |= moved
        has_gradients = moved or any(p.grad is not None and bool(dense(p.grad).any()) for p in after)
        self.steps.append(OptimizerStep(optimizer, found_inf, moved, len(self.rounds), has_gradients, has_rate))
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Update as GradScaler does, and note the call."""
        with self._noting("update"):
            super().update(new_scale)
        self.rounds.append(self._found_in_round)
        self._found_in_round = False

    @property
    def skips_in_part(self) -> bool:
        """Return whether a step with an inf or NaN was skipped in this iteration, and another one taken."""
        return self.moved and any(step.found_inf and not step.moved for step in self.steps)

    def traced(self, scale: float) -> TraceStep:
        """Return the trace of the iteration that began with ``scale``."""
        state = self.state_dict()
        skipped = ("step" in self.called or self.found_inf) and not self.moved
        return TraceStep(scale, self.found_inf, skipped, state["scale"], state["_growth_tracker"])


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def identical(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return whether tensors are equal, with NaN equal to NaN: a bool tensor of no dimensions, on their device."""
    return ((left == right) | (left.isnan() & right.isnan())).all()


def _all_identical(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Return whether all pairs are identical, with one read per device: each read waits for it."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for old, new in zip(left, right, strict=True):
        same = identical(old, new)
        by_device.setdefault(same.device, []).append(same)
    return all(bool(torch.stack(copies).all()) for copies in by_device.values())
