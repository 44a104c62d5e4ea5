"""Harm of low precision in a model's code: the ratio of a step's errors against float64 with and without it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pytest_amp.cases import Case, Realised
from pytest_amp.check.entry import Entry
from pytest_amp.check.own import Key, OwnPrecision, Part
from pytest_amp.failure import is_usage_error
from pytest_amp.lint import Severity
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import distance, is_inexact, norm
from pytest_amp.numerics.loss_scale import at_largest_scale
from pytest_amp.numerics.prediction import exact_step
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.redraw import redrawn
from pytest_amp.numerics.step import Step, run_step

__tracebackhide__ = is_usage_error

#: Ratio of errors from which low precision is harmful. Variances of independent errors add up: a ratio of 1.3 means
#: that the model's casts add 0.69 of the variance of autocast's, as eight roundings added to the twelve in a step of
#: three products. One cast and its gradient give sqrt(14 / 12) = 1.08. Correct models reach at most 1.05 (casts that
#: every decoder makes), 1.15 (a low-precision residual stream) and 1.23 (CLIP, which normalises its embeddings in
#: float16).
LIMIT = 1.3
#: Ratio from which the error of the loss is harmful. The loss is one value, whose error may be small by chance: the
#: ratio must be reached in each draw, and the error be a quarter of a unit roundoff or more.
LOSS_LIMIT, LOSS_LEAST = 4.0, 0.25
#: Maximum number of functions that are measured one by one.
MOST = 12
#: Smallest loss scale that is tried.
_LEAST_SCALE = 2.0**-10


@dataclass(frozen=True)
class Errors:
    """Relative L2 distances from float64: of all gradients, of all outputs except the loss, and of the loss."""

    gradients: float
    outputs: float
    loss: float

    @property
    def is_finite(self) -> bool:
        """Return whether all errors are finite."""
        return all(map(math.isfinite, (self.gradients, self.outputs, self.loss)))


@dataclass
class Harm:
    """Step of a case with and without the low precision of some functions, compared with float64."""

    case: Case
    where: Conditions
    seed: int
    parts: dict[Key, Part] = field(default_factory=dict)
    _known: dict[frozenset[Key], Errors] = field(default_factory=dict)

    @cached_property
    def realised(self) -> Realised:
        """Model, batch, and the random numbers of the step."""
        return realise(self.case, self.where, seed=self.seed)

    @cached_property
    def exact(self) -> Step:
        """Step in float64."""
        return exact_step(self.case, self.realised, self.where.device, seed=self.seed)

    @cached_property
    def loss_scale(self) -> float:
        """Largest loss scale, from 65536 down, for which the unchanged step is finite; 1 in other dtypes than fp16."""
        scale, self._known[frozenset()] = at_largest_scale(
            lambda scale: self._errors(self._run(frozenset(), scale)),
            lambda errors: errors.is_finite,
            self.where.precision,
            least=_LEAST_SCALE,
        )
        return scale

    def errors(self, left_out: Iterable[Key] = ()) -> Errors:
        """Return the errors of the step without the low precision of ``functions``; infinite if the step raises."""
        keys, scale = frozenset(left_out), self.loss_scale
        if keys not in self._known:
            self._known[keys] = self._errors(self._run(keys, scale))
        return self._known[keys]

    def _run(self, left_out: frozenset[Key], scale: float) -> Step | None:
        realised = self.realised.on(self.where.device.torch_device)
        own_precision = OwnPrecision(realised.model, left_out)
        try:
            with own_precision.on():
                step = run_step(self.case, realised, self.where.region, seed=self.seed, loss_scale=scale)
        except Exception:  # noqa: BLE001  # a function may reject float32 in place of a low dtype
            return None
        self.parts = self.parts or own_precision.parts
        return step

    def _errors(self, step: Step | None) -> Errors:
        if step is None:
            return Errors(math.inf, math.inf, math.inf)
        named, exact = step.named(), self.exact.named()
        outputs = [name for name in exact if name.startswith("output.") and name != "output.loss"]
        gradients = [name for name in exact if not name.startswith(("output.", "buffer."))]
        return Errors(*(_together(named, exact, names) for names in (gradients, outputs, ["output.loss"])))


def _together(named: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor], names: Sequence[str]) -> float:
    """Return the relative L2 distance over all tensors; 0 without tensors, infinite if a value is not finite."""
    far = size = 0.0
    for name in names:
        tensor, reference = named.get(name), exact.get(name)
        if tensor is None or reference is None or not is_inexact(reference):
            continue
        far += distance(tensor, reference) ** 2
        size += norm(reference) ** 2
    if math.isnan(far):
        return math.inf
    return math.sqrt(far / size) if size else 0.0


def ratio_of(left: Errors, right: Errors, u: float) -> float:
    """Return the ratio of the errors of ``left`` to those of ``right``; infinite if only those of ``right`` are finite.

    ``u`` is the unit roundoff; errors below a hundredth of it are ignored, and the divisor is at least a thousandth.
    """
    if not right.is_finite:
        return 1.0
    if not left.is_finite:
        return math.inf
    pairs = ((left.gradients, right.gradients), (left.outputs, right.outputs))
    return max((a / max(b, u * 1e-3) for a, b in pairs if a > u * 1e-2), default=1.0)


def loss_ratio(left: Errors, right: Errors, u: float) -> float:
    """Return the ratio of the loss errors of ``left`` and ``right``; 1 if it, or that of ``left``, is negligible."""
    if not (left.is_finite and right.is_finite) or left.loss < LOSS_LEAST * u:
        return 1.0
    ratio = left.loss / max(right.loss, u * 1e-2)
    return ratio if ratio > LOSS_LIMIT else 1.0


def measured(harm: Harm, entries: Sequence[Entry]) -> tuple[list[Entry], float]:
    """Return the entries with their harm, with new entries for harmful functions, and the ratio of the whole step.

    The ratio is NaN if nothing can be measured: the step does not run without the low precision, or is not finite. The
    functions of the entries are measured, and all functions that cast to a low dtype.
    """
    case, where, u = harm.case, harm.where, harm.where.precision.u
    harm.errors()  # fills the parts
    suspects = {
        key: part
        for key, part in harm.parts.items()
        if part.cast_lines or any(part.is_at(entry.site, entry.message) for entry in entries)
    }
    if not suspects:
        return list(entries), 1.0
    whole = _confirmed(case, where, harm, suspects, u)
    if whole <= LIMIT:
        is_measured = harm.errors(suspects).is_finite
        return list(entries), whole if is_measured else math.nan
    by_part = {key: _of_one(harm, key, suspects, u) for key in list(suspects)[:MOST]}
    result = []
    for entry in entries:
        keys = [key for key, part in suspects.items() if part.is_at(entry.site, entry.message) and key in by_part]
        worst = max((by_part[key] for key in keys), default=None)
        limit = max((limit_of(suspects[key], where) for key in keys), default=LIMIT)
        result.append(entry if worst is None else entry.with_harm(worst, is_harmful=worst > limit))
    for key, ratio in by_part.items():
        part = suspects[key]
        if ratio > LIMIT and not any(part.is_at(entry.site, entry.message) for entry in entries):
            severity = Severity.ERROR if ratio > limit_of(part, where) else Severity.WARNING
            result.append(_harmful(part, ratio, severity))
    return result, whole


def _confirmed(case: Case, where: Conditions, harm: Harm, suspects: dict[Key, Part], u: float) -> float:
    """Return the ratio of the whole step, the smallest over several draws: of gradients and outputs, or of the loss."""
    whole = max(ratio_of(harm.errors(), harm.errors(suspects), u), _loss_harm(harm, suspects, u))
    for again in redrawn(lambda seed: Harm(case, where, seed), where.seed):
        if whole <= LIMIT:
            break
        ratio = max(ratio_of(again.errors(), again.errors(suspects), u), _loss_harm(again, suspects, u))
        whole = min(whole, ratio)
    return whole


def _loss_harm(harm: Harm, suspects: Mapping[Key, Part], u: float) -> float:
    """Return the harm of the casts of the functions to the loss.

    A loss that is low by autocast's rules alone, as a mean on a CPU, is rounded once: that is a finding of the linter,
    and no harm of the model's code.
    """
    casting = [key for key, part in suspects.items() if part.cast_lines]
    return loss_ratio(harm.errors(), harm.errors(casting), u)


def _of_one(harm: Harm, key: Key, suspects: Mapping[Key, Part], u: float) -> float:
    """Return the harm of one function: the larger of two ratios of errors.

    One compares the unchanged step with the step without the function, the other a step with the function alone with a
    step without any of ``suspects``. The loss counts for a function that casts.
    """
    remaining = frozenset(suspects) - {key}
    pairs = ((harm.errors(), harm.errors([key])), (harm.errors(remaining), harm.errors(suspects)))
    ratios = [ratio_of(left, right, u) for left, right in pairs]
    losses = [loss_ratio(left, right, u) for left, right in pairs if suspects[key].cast_lines]
    return max(*ratios, *losses, 1.0)


def limit_of(part: Part, where: Conditions) -> float:
    """Return the ratio from which a function is harmful.

    A cast to bfloat16 in a float16 run loses three bits by itself: a function that casts to the dtype of a frozen layer
    has chosen that loss.
    """
    chosen = max((torch.finfo(dtype).eps for dtype in part.dtypes), default=0.0)
    return LIMIT * max(1.0, chosen / torch.finfo(where.precision.dtype).eps)


def _harmful(part: Part, ratio: float, severity: Severity) -> Entry:
    """Return the entry of a function with harmful casts that has no finding of the linter."""
    lines = list(part.cast_lines or part.lines)
    # ``function`` is the user's, which calls the library's.
    subject = "a function of a library" if part.libraries else part.function or "a function"
    return Entry(
        kind="harmful-cast",
        severity=severity,
        module=part.module,
        site=lines[0] if lines else "",
        message=f"{subject} casts to a low dtype by itself, and the step is further from float64 "
        f"by it{f' (lines {_numbers(lines)})' if len(lines) > 1 else ''}",
        parts=(("mend", "leave the cast to autocast, or compute what follows it in float32"),),
        harm=ratio,
    )


def _numbers(lines: Sequence[str]) -> str:
    return ", ".join(line.rpartition(":")[2] for line in lines[:6])
