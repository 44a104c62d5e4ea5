"""Harm of an evaluation's own low precision: its metrics as they are, and with that precision left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch

from pytest_amp.account import receive
from pytest_amp.cases import Case, in_one_line, named_tensors, passes
from pytest_amp.check.decisions import Decisions, Disturbance, DivergedError
from pytest_amp.check.entry import Entry
from pytest_amp.check.harm import LOSS_LIMIT
from pytest_amp.check.own import Key, OwnPrecision, Part
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.lint import Severity
from pytest_amp.lint.runs import run_evaluation
from pytest_amp.lint.suspect import ARITHMETIC
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import distance, norm
from pytest_amp.numerics.redraw import redrawn
from pytest_amp.training.noise import uniform_noise

__tracebackhide__ = is_usage_error

#: Name of the linter's part whose findings are measured.
LINTED = "linter: evaluate"
#: Relative error of a metric, in unit roundoffs, below which nothing is harm: as many roundings of the metric explain
#: it. A metric that is rounded as a result is an accepted loss of accuracy; a sum that stops growing is none.
LEAST = 8
#: Number of runs whose results have errors of a rounding each, which show how far chance moves a metric.
DISTURBED = 3
#: Findings about arithmetic in the evaluation; a cast of the input may be what the evaluation is about.
_MEASURED = frozenset({*ARITHMETIC, "low-metric"} - {"own-cast", "useless-widening"})

#: Metrics by name, as tensors of float64.
Metrics = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class MetricHarm:
    """Values of a metric with and without an evaluation's own low precision, which differ by more than rounding."""

    name: str
    low: torch.Tensor
    wide: torch.Tensor

    def __str__(self) -> str:
        """Return the values in one sentence."""
        name = self.name or "the metric"
        if self.low.numel() > 1 and not bool(self.low.isfinite().all()):
            return f"{name} is not finite, and finite without this low precision"
        if self.low.numel() > 1:
            return f"{name} is off by {distance(self.low, self.wide) / norm(self.wide):.1%}"
        return f"{name} is {self.low.item():.4g}, and {self.wide.item():.4g} without this low precision"

    def exceeds(self, limit: float) -> bool:
        """Return whether the relative error is larger than ``limit``, or the low-precision metric alone not finite."""
        if self.low.shape != self.wide.shape or not bool(self.wide.isfinite().all()):
            return False
        if not bool(self.low.isfinite().all()):
            return True
        size = norm(self.wide)
        return size > 0 and not distance(self.low, self.wide) <= limit * size

    def is_beyond(self, disturbed: Sequence[float], repeated: float) -> bool:
        """Return whether the error is larger than those of disturbed runs, and of a repeated one."""
        noise = max(math.sqrt(sum(error**2 for error in disturbed) / len(disturbed)), repeated)
        return not distance(self.low, self.wide) <= LOSS_LIMIT * noise or not bool(self.low.isfinite().all())


@dataclass
class EvaluationHarm:
    """Runs of an evaluation in one draw, as it is and with the low precision of some of its functions left out.

    All runs take the decisions of the first: an argmax or a comparison that rounding turns over changes no metric.
    What independent roundings may do to a metric is measured, and is no harm: a sum that stops growing is further off.
    """

    case: Case
    where: Conditions
    evaluate: Callable[[Any], Any]
    parts: dict[Key, Part] = field(default_factory=dict)
    #: Reason for which the last run without metrics has none; ``""`` if all runs have some.
    unmeasured: str = ""
    _decisions: Decisions = field(default_factory=Decisions)
    _unchanged: tuple[Metrics | None, Metrics | None] | None = None
    _known: dict[frozenset[Key], dict[str, MetricHarm]] = field(default_factory=dict)

    def harmed(self, left_out: Iterable[Key] | None = None) -> dict[str, MetricHarm]:
        """Return the metrics that the low precision of the functions harms, of all functions without ``left_out``.

        Empty if a run raises or takes another course, where nothing can be measured: ``unmeasured`` says why.
        """
        if self._unchanged is None:
            first = self._run(frozenset())
            self._decisions.replays = True
            self._unchanged = first, self._run(frozenset())
        keys = frozenset(self.parts if left_out is None else left_out)
        if keys not in self._known:
            self._known[keys] = self._compared(keys, *self._unchanged) if keys else {}
        return self._known[keys]

    def _compared(self, keys: frozenset[Key], low: Metrics | None, again: Metrics | None) -> dict[str, MetricHarm]:
        wide = None if low is None or again is None else self._run(keys)
        if low is None or again is None or wide is None:
            return {}
        harms = {name: MetricHarm(name, value, wide[name]) for name, value in low.items() if name in wide}
        harms = {name: harm for name, harm in harms.items() if harm.exceeds(LEAST * self.where.precision.u)}
        if not harms:
            return {}
        disturbed = [run for run in (self._run(keys, disturbed=seed) for seed in range(1, 1 + DISTURBED)) if run]
        return {
            name: harm
            for name, harm in harms.items()
            if len(disturbed) == DISTURBED
            and all(_has(run, name, harm.wide) for run in (again, *disturbed))
            and harm.is_beyond([distance(run[name], harm.wide) for run in disturbed], distance(low[name], again[name]))
        }

    def _run(self, left_out: frozenset[Key], *, disturbed: int = 0) -> Metrics | None:
        """Return the metrics of a run; with the seed ``disturbed`` parameters and results have errors of rounding."""
        realised = self.case.realise(seed=self.where.seed).on(self.where.device.torch_device)
        scope = OwnPrecision(realised.model, left_out, decisions=self._decisions)
        if disturbed:
            generator, u = torch.Generator().manual_seed(disturbed), self.where.precision.u
            _disturb(realised.model, u, generator)
            scope.disturbance = Disturbance(u, generator)
        case = replace(self.case, loss=scope.untouched(self.case.loss))
        self._decisions.begin()
        try:
            metrics = run_evaluation(case, self.where, self.evaluate, realised, scope.on())
        except (Exception, AmpFailure) as error:  # an evaluation may reject float32 in place of a low dtype
            if isinstance(error, Exception) and not isinstance(error, DivergedError) and passes(error):
                raise
            receive(error)
            self.unmeasured = "it takes another course" if isinstance(error, DivergedError) else in_one_line(error)
            return None
        self.parts = self.parts or scope.parts
        return _exact(metrics)


def _disturb(model: torch.nn.Module, u: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not parameter.is_sparse:
                parameter.mul_(1 + u * uniform_noise(parameter.shape, generator).to(parameter.device))


def _has(metrics: Metrics, name: str, like: torch.Tensor) -> bool:
    return name in metrics and metrics[name].shape == like.shape


def _exact(metrics: Any) -> Metrics:
    """Return the floating tensors and the numbers of an evaluation's result, in float64."""
    tensors = {} if metrics is None else dict(named_tensors(metrics, "", objects=True))
    exact = {name: x.detach().cpu().double() for name, x in tensors.items() if x.numel() and not x.is_complex()}
    return exact | {name: torch.tensor(x, dtype=torch.float64, device="cpu") for name, x in _numbers(metrics, "")}


def _numbers(tree: Any, name: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of mappings, lists and tuples by their paths, as ``named_tensors`` yields tensors."""
    if isinstance(tree, Real):
        yield name, float(tree)
    entries: Iterable[tuple[object, Any]] = ()
    if isinstance(tree, Mapping):
        entries = tree.items()
    elif isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        entries = tree._asdict().items()
    elif isinstance(tree, (list, tuple)):
        entries = enumerate(tree)
    for key, value in entries:
        yield from _numbers(value, f"{name}.{key}" if name else str(key))


def is_measurable(entry: Entry) -> bool:
    """Return whether the harm of an entry to the metrics of an evaluation can be measured."""
    return entry.check == LINTED and entry.kind in _MEASURED


def measured_evaluation(
    case: Case, where: Conditions, evaluate: Callable[[Any], Any], entries: Sequence[Entry]
) -> tuple[list[Entry], str]:
    """Return the entries; those of the evaluation's arithmetic are errors if it harms a metric in each of the draws.

    The second value is the reason for which a draw was not measured, ``""`` without one or if a metric is harmed.
    """
    concerned = [entry for entry in entries if is_measurable(entry)]

    def draw(seed: int) -> EvaluationHarm:
        return EvaluationHarm(case, replace(where, seed=seed), evaluate)

    draws = [draw(where.seed), *redrawn(draw, where.seed)]
    if not _in_each(draws, None):
        return list(entries), next((draw.unmeasured for draw in draws if draw.unmeasured), "")
    parts = draws[0].parts.items()
    keys_of = {entry: [key for key, part in parts if part.is_at(entry.site, entry.message)] for entry in concerned}
    harms = {entry: _in_each(draws, keys) if keys else {} for entry, keys in keys_of.items()}
    if not any(harms.values()):  # functions that harm a metric only together; those without a finding do not count
        keys = [key for keys in keys_of.values() for key in keys]
        together = list(dict.fromkeys(keys)) if all(keys_of.values()) else None
        harms = dict.fromkeys(concerned, _in_each(draws, together))
    return [_with_harm(entry, harms.get(entry, {})) for entry in entries], ""


def _in_each(draws: Sequence[EvaluationHarm], keys: Sequence[Key] | None) -> dict[str, MetricHarm]:
    """Return the metrics that are harmed in each draw, with the values of the first."""
    first = harmed = draws[0].harmed(keys)
    for draw in draws[1:]:
        if not harmed:
            break
        again = draw.harmed(keys)
        harmed = {name: first[name] for name in harmed if name in again}
    return harmed


def _with_harm(entry: Entry, harms: Mapping[str, MetricHarm]) -> Entry:
    if not harms:
        return entry
    text = "; ".join(str(harm) for harm in list(harms.values())[:3])
    return replace(entry, severity=Severity.ERROR, parts=(*entry.parts, ("harm", text)))
