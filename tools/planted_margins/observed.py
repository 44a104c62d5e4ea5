"""Plugin that records the measurements of tests before their verdict: ``-p tools.planted_margins.observed``.

``MARGINS`` names a JSON file to be written. It has an entry for each test that has run: its outcome, its message,
noise, excess and distance of its step, the operator that is furthest from its model, and the margin of each measure of
the verdict: value over bound, the worst of the test. Only tests run whose ids, or their beginnings, are in
``MARGINS_OF``, one a line.

Errors are in units of the model's expected error, and independent errors add as squares: an error of e times the
model's includes one of its own of ``sqrt(e^2 - 1)``. A margin is a ratio of those.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_amp.account import receive
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import gradients, reductions, tolerance
from pytest_amp.numerics import manual_cast_comparison as manual_casts
from pytest_amp.numerics.compare import Compared, median_distance
from pytest_amp.numerics.oracle import verdict
from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.observer import Agreement, ObservedCall
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.prediction import Prediction
from pytest_amp.numerics.step import Step
from pytest_amp.run.identity import OBSERVATIONS

TO, OF = "MARGINS", "MARGINS_OF"

#: Margin of a check that is yes or no.
YES = math.inf


def own(error: float) -> float:
    """Return the error beyond the model's, in units of the model's."""
    return math.sqrt(max(error * error - 1.0, 0.0))


@dataclass
class Measured:
    """Measurements of one test: the worst of each measure, and of which tensor or operator."""

    step: dict[str, Any] = field(default_factory=dict)
    operator: dict[str, Any] = field(default_factory=dict)
    margins: dict[str, tuple[float, str]] = field(default_factory=dict)

    def note(self, measure: str, margin: float, whose: str) -> None:
        """Keep a margin if it is the worst."""
        if not margin <= self.margins.get(measure, (-1.0, ""))[0]:
            self.margins[measure] = (margin, whose)


_now = Measured()
_found: dict[str, dict[str, Any]] = {}


def _of_step(prediction: Prediction, compared: Sequence[Compared], u: float) -> None:
    """Note the global verdict's measures, as ``check_gradients`` has them."""
    followed = prediction.predicted is not None
    for tensor in compared:
        kind = "tensor's error" if followed else "tensor's error with manual casts only"
        _now.note(kind, own(tensor.excess) / own(tensor.factor), tensor.name)
        _now.note("distance from float32", tensor.plain / (tensor.allowed_plain or math.inf), tensor.name)
        if followed and not prediction.unmodelled:
            _now.note("tensor's distance", tensor.from_model / tolerance.FARTHEST, tensor.name)
        if followed and tensor.elements >= tolerance.ENOUGH and tensor.noise > u / 8:
            _now.note("too exact", tolerance.LEAST * tensor.noise / max(tensor.error, 1e-30), tensor.name)
    large = [tensor for tensor in compared if tensor.elements >= tolerance.ENOUGH] or list(compared)
    excess, far = [tensor.excess_over_noise(u) for tensor in large], [tensor.from_model for tensor in large]
    if large:
        _now.step = {
            "noise": statistics.median(tensor.noise for tensor in large) / u,
            "excess": (statistics.median(excess), max(excess)),
            "distance": (statistics.median(far), max(far)) if followed else None,
        }


def _of_operator(call: ObservedCall, result: Agreement, low: torch.dtype, fault: verdict.Fault | None) -> None:
    """Note the local verdict's measures; of a result that was repeated with other values, the smaller one."""
    what = f"{call.operator.removeprefix('aten::')} {call.place.direction.value}"
    draws = [(result, False)] if result.again is None else [(result, False), (result.again, True)]
    here: dict[str, float] = {}
    for draw, again in draws:
        margins = _of_draw(call, draw, low, again=again)
        here = {name: min(here.get(name, YES), margin) for name, margin in margins.items()}
    if result.expected_dtype is not None and result.expected_dtype != result.dtype:
        here["operator's dtype"] = YES
    if (fault is None) != all(margin <= 1 for margin in here.values()):
        here["not what the verdict says"] = YES
    for name, margin in here.items():
        _now.note(name, margin, what)
    worst = max(here.values(), default=0.0)
    if not worst <= _now.operator.get("margin", -1.0):
        error, _ = verdict.error_and_bound(call, result, low)
        _now.operator = {
            "what": what,
            "margin": worst,
            "equal": result.equal / result.elements,
            "error": error if result.dtype in LOW else None,
            "float32": None if result.dtype in LOW else error,
            "hollow": result.hollow,
        }


def _of_draw(call: ObservedCall, result: Agreement, low: torch.dtype, *, again: bool) -> dict[str, float]:
    error, most = verdict.error_and_bound(call, result, low, again=again)
    if result.dtype not in LOW:
        margins = {"float32 operator's error": error / most}
        if result.hollow and (call.model.name is not ModelName.RUNNING_SUM or low not in call.given):
            margins["operator is hollow"] = YES
        return margins if result.dtype in (torch.float32, torch.float64) else {}
    # A factor of the model is one of its own error.
    usual = most / verdict.EXCESS
    margins = {"operator's error": own(error / usual) / own(verdict.EXCESS)}
    unlike = verdict.unequal(call, result)
    if unlike is not None:  # both have to exceed: the smaller of two margins
        larger = own(error) / own(verdict.SHARE_EXCESS)
        margins["operator rounds twice"] = min(unlike / (1 - verdict.SHARE), larger)
    return margins


#: Modules whose functions are wrapped.
_gradients: Any = gradients
_manual_casts: Any = manual_casts
_verdict: Any = verdict


def pytest_configure() -> None:
    """Wrap the computations of the checks."""
    compare, fault_of, check_reference = _gradients.compare, _verdict.fault_of_result, _gradients.check_reference

    def compared(*args: Any, **kwargs: Any) -> list[Compared]:
        step: list[Compared] = compare(*args, **kwargs)
        _of_step(args[0], step, kwargs["u"])
        return step

    def judged(call: ObservedCall, result: Agreement, low: torch.dtype, scale: float) -> verdict.Fault | None:
        fault: verdict.Fault | None = fault_of(call, result, low, scale)
        _of_operator(call, result, low, fault)
        return fault

    def reference(run: Any, amp: Step, compared_tensors: Sequence[Compared]) -> None:
        names = _manual_casts._different_bits(
            run, amp, frozenset(tensor.name for tensor in compared_tensors if not tensor.equal)
        )
        _now.note(
            "bits that differ from manual casts",
            YES if names else 0.0,
            f"{len(names)} of {len(compared_tensors)} tensors",
        )
        if _manual_casts.median_allowed(run, compared_tensors) is not None:
            _now.note(
                "median distance from manual casts", median_distance(compared_tensors) / tolerance.MEDIAN_DISTANCE, ""
            )
        for tensor in compared_tensors:
            _now.note("distance from manual casts", tensor.distance / tolerance.WORST_DISTANCE, tensor.name)
        try:  # which is checked last, if all else passes
            _gradients._check_hollow(run, amp)
        except AmpFailure as failure:
            receive(failure)
            _now.note("hollow float32", YES, str(failure))
        else:
            _now.note("hollow float32", 0.0, "")
        check_reference(run, amp, compared_tensors)

    _gradients.compare, _verdict.fault_of_result, _gradients.check_reference = compared, judged, reference


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the requested tests only."""
    expected = tuple(os.environ[OF].splitlines())
    left = [item for item in items if not item.nodeid.startswith(expected)]
    items[:] = [item for item in items if item.nodeid.startswith(expected)]
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note the measurements of the test, and reset them."""
    report = yield
    if report.when == "setup" and report.passed:
        globals()["_now"] = Measured()
    if report.when == "call" or not report.passed:
        _observed(item)
        message = getattr(report, "wasxfail", "") or ("" if call.excinfo is None else _message_of(call.excinfo.value))
        _found[item.nodeid] = {
            "outcome": "xfailed" if hasattr(report, "wasxfail") else report.outcome,
            "says": (message.splitlines() or [""])[0],
            "seconds": report.duration,
            "step": _now.step,
            "operator": _now.operator,
            "margins": _now.margins,
        }
    return report


def _message_of(error: BaseException) -> str:
    """Return the message, with the kind of error unless tests usually raise it: it may have another cause."""
    is_verdict = isinstance(error, (AmpFailure, AssertionError))
    return str(error).strip() if is_verdict else f"{type(error).__name__}: {error}"


def _observed(item: pytest.Item) -> None:
    """Note a test's own observations that have a limit. The checks of a step are noted above."""
    for observation in item.stash.get(OBSERVATIONS, []):
        name = observation.key.split("/", 3)[3]
        if observation.allowed is None or not isinstance(observation.value, (int, float)) or _now.step:
            continue
        if observation.unit == "noise":
            _now.note("operator's error", own(observation.value) / own(observation.allowed), name)
        elif observation.unit == "roundings":  # of which an operator may be known to make more than one
            usual = observation.allowed / reductions.MARGIN
            _now.note("error of long sums", own(observation.value / usual) / own(reductions.MARGIN), name)
        else:
            _now.note(
                f"observed {observation.unit or observation.kind.value}",
                observation.value / (observation.allowed or 1e-30),
                name,
            )


def pytest_sessionfinish() -> None:
    """Write the file."""
    Path(os.environ[TO]).write_text(json.dumps(_found, indent=1), encoding="utf-8")
