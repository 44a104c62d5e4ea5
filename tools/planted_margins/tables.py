"""Tables of tools/planted_margins: the measures that detect a planted defect, and their margins."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

DTYPES = ("bf16", "fp16")
#: Required ratio of a defect to the worst healthy test, by a measure beyond its bound.
ENOUGH = 2.0

#: Measurements of a test, as tools/planted_margins/observed.py writes them, and by its id.
Entry = dict[str, Any]
Found = dict[str, Entry]

#: Reasons for which a defect has no effect in a dtype, anywhere or on a device.
IDLE = {
    ("channels_softmax_rounded", "cuda-bf16"): "CUDA's autocast gives the kernel float32",
    ("conversions_truncate", "fp16"): "only conversions to bf16 are cut off",
    ("layer_norm_in_one_pass", "bf16"): "float32 tells the squares of numbers apart that bf16 tells apart",
    ("matmul_casts_through_float16", "fp16"): "the cast is the right one",
    ("small_gradients_flushed", "fp16"): "the loss is scaled: no gradient is as small",
    ("topk_goes_by_way_of_fp16", "fp16"): "the way is the right one",
}


@dataclass
class Report:
    """Healthy measurements by test, and measurements with a defect by defect and test."""

    healthy: Found = field(default_factory=dict)
    planted: dict[str, Found] = field(default_factory=dict)

    def worst(self) -> dict[str, tuple[float, str]]:
        """Return by measure the largest margin of the healthy tests, and its test."""
        largest: dict[str, tuple[float, str]] = {}
        for test, row in self.healthy.items():
            for measure, (margin, whose) in row["margins"].items() if row["outcome"] == "passed" else ():
                if not margin <= largest.get(measure, (-1.0, ""))[0]:
                    largest[measure] = margin, f"{_case(test)}, {_dtype(test)}: {whose}"
        return largest


class Telling(NamedTuple):
    """Best detection of a defect: the measure, its margin, and the margin's ratio to the worst healthy one.

    The margin of a yes or no is infinite; the measure is empty if only a test's message detects the defect.
    """

    test: str
    measure: str
    margin: float
    factor: float


#: Message that comes before any value is judged: values of a step that varies from run to run are chance.
UNJUDGED = "the step computes something else each time"


def telling(test: str, entry: Entry, worst: Mapping[str, tuple[float, str]]) -> Telling:
    """Return the best detection: a value beyond ``ENOUGH`` precedes a yes or no, which precedes other values."""
    if UNJUDGED in entry["says"]:
        return Telling(test, "", math.inf, math.inf)
    measures = []
    for measure, (margin, _) in entry["margins"].items():
        most = worst.get(measure, (0.0, ""))[0]
        if margin > 1:
            measures.append(Telling(test, measure, margin, margin / most if most else math.inf))
    numbers = [measure for measure in measures if measure.factor >= ENOUGH and measure.margin < math.inf]
    certain = [measure for measure in measures if measure.margin == math.inf]
    if numbers or (measures and not certain):
        return max(numbers or measures, key=lambda measure: (measure.factor < math.inf, measure.factor))
    return certain[0] if certain else Telling(test, "", math.inf, math.inf)


def telling_of(report: Report, defect: str, dtype: str) -> Telling | None:
    """Return the best detection of a defect in a dtype; None if all of its tests are green there."""
    worst, rows = report.worst(), report.planted[defect]
    red = [
        telling(test, row, worst) for test, row in rows.items() if _dtype(test) == dtype and row["outcome"] == "failed"
    ]

    def order(measure: Telling) -> tuple[bool, bool, float, bool]:
        whole_sentence = rows[measure.test]["says"].startswith("AmpFailure")
        return measure.measure != "", measure.factor < math.inf, measure.factor, whole_sentence

    return max(red, key=order, default=None)


def too_near(report: Report) -> list[str]:
    """Return defects that are green in both dtypes, expected failures aside, or too close to healthy in one."""
    near = []
    for name, rows in report.planted.items():
        both = [measure for measure in (telling_of(report, name, dtype) for dtype in DTYPES) if measure is not None]
        expected = all(row["outcome"] == "xfailed" for row in rows.values())
        if any(measure.factor < ENOUGH for measure in both) or not (both or expected):
            near.append(name)
    return near


_NUMBERS = (
    *("defect", "case", "dtype", "noise", "excess", "distance", "local prediction", "seconds"),
    *("told by", "margin", "healthy", "worst healthy", "factor"),
)
_WORDS = ("defect", "case", "bf16", "fp16")
_MEASURES = ("measure", "worst healthy margin", "of", "weakest defect", "of", "factor")


def tables(report: Report) -> str:
    """Return the tables of defects detected by a value, of those detected by a message, and of the measures."""
    parts = (_NUMBERS, _numbers(report)), (_WORDS, _words(report)), (_MEASURES, _measures(report))
    return "\n".join(line for head, rows in parts for line in (*_table(head, rows), ""))


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _numbers(report: Report) -> Iterator[tuple[str, ...]]:
    worst = report.worst()
    for name, rows in report.planted.items():
        for dtype in DTYPES:
            best = telling_of(report, name, dtype)
            if best is None or not best.measure:
                continue
            entry = rows[best.test]
            by = [measure for measure, (margin, _) in entry["margins"].items() if margin == best.margin == math.inf]
            healthy = report.healthy.get(best.test, {"margins": {}})["margins"].get(best.measure, (0.0, ""))[0]
            yield (
                *(f"`{name}`", _case(best.test), dtype, *_step(entry["step"]), _local(entry["operator"])),
                *(f"{entry['seconds']:.1f}", ", ".join(by) or best.measure, _number(best.margin), _number(healthy)),
                *(_number(worst.get(best.measure, (0.0, ""))[0]), _factor(best.factor)),
            )


def _words(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield the defects that only messages detect, in one dtype or in both."""
    for name, rows in report.planted.items():
        both = {dtype: telling_of(report, name, dtype) for dtype in DTYPES}
        if all(measure is not None and measure.measure for measure in both.values()):
            continue
        test = next(
            (measure.test for measure in both.values() if measure is not None and not measure.measure), next(iter(rows))
        )
        yield f"`{name}`", _case(test), *(_outcome_text(rows, name, dtype, measure) for dtype, measure in both.items())


def _outcome_text(rows: Found, name: str, dtype: str, best: Telling | None) -> str:
    if best is not None:
        return "see above" if best.measure else _sentence(rows[best.test]["says"])
    here = [test for test in rows if _dtype(test) == dtype]
    reasons = [
        *(IDLE.get((name, place), "") for test in here for place in (dtype, "-".join(_target(test)))),
        *(rows[test]["says"] for test in here if rows[test]["outcome"] == "xfailed"),
    ]
    return f"green: {_sentence(next(filter(None, reasons), 'it is as it should be'))}"


def _measures(report: Report) -> Iterator[tuple[str, ...]]:
    best = {(name, dtype): telling_of(report, name, dtype) for name in report.planted for dtype in DTYPES}
    for measure, (margin, whose) in sorted(report.worst().items()):
        by_it = [
            (measure_of_dtype.margin, key)
            for key, measure_of_dtype in best.items()
            if measure_of_dtype is not None and measure_of_dtype.measure == measure
        ]
        least, of = min(by_it, default=(math.nan, ("", "")))
        factor = least / margin if margin else math.inf
        weakest = (_number(least), f"`{of[0]}`, {of[1]}", _factor(factor)) if by_it else ("", "", "")
        yield measure, _number(margin), whose, *weakest


def _target(test: str) -> tuple[str, str]:
    """Return device and dtype of a test."""
    device, dtype = re.findall(r"\[([a-z]+)-(bf16|fp16)", test)[0]
    return device, dtype


def _dtype(test: str) -> str:
    return _target(test)[1]


def _case(test: str) -> str:
    """Return the file of a test, and its parameter or name."""
    file, _, name = test.partition("::")
    function, _, parameters = name.removesuffix("]").partition("[")
    case = re.sub(r"^[a-z]+-(bf16|fp16)-?", "", parameters)
    return f"{Path(file).stem.removeprefix('test_')}: {case or function.removeprefix('test_').replace('_', ' ')}"


def _step(step: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return noise, and median and worst of excess and distance."""
    if not step:
        return "", "", ""
    pairs = [step["excess"], step["distance"]]
    excess, distance = ("" if pair is None else f"{pair[0]:.3g} ({pair[1]:.3g})" for pair in pairs)
    return f"{step['noise']:.2f} u", excess, distance


def _local(operator: Mapping[str, Any]) -> str:
    """Describe the operator that is furthest from its model."""
    if not operator or operator["margin"] <= 1:
        return "silent" if operator else ""
    error = f"error {operator['float32']:.2g}" if operator["error"] is None else f"{operator['error']:.3g} times"
    equal = f"{operator['equal']:.2f} equal"
    return f"{operator['what']}: {'hollow, ' if operator['hollow'] else ''}{equal}, {error}"


def _sentence(message: str) -> str:
    """Return the beginning of a test's message, or a note that an assertion has none."""
    text = re.sub(r"\s+", " ", message.removeprefix("AmpFailure: ")).replace("`", "").strip()
    return "an assertion" if not text or text.startswith("assert ") else textwrap.shorten(text, 100, placeholder=" ...")


def _factor(value: float) -> str:
    return "∞" if value == math.inf else _number(value)


def _number(value: float) -> str:
    return "yes" if value == math.inf else f"{value:.2g}" if value < 100 else f"{value:.0f}"
