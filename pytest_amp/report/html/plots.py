"""SVG plots of the HTML report: changes by family, errors relative to their limits, speedups, and loss scales."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from pytest_amp.record import ORDER, Better, Failure, Kind, Observation, Value, Verdict, families
from pytest_amp.report.cells import TITLES, short, titled
from pytest_amp.report.html.svg import Scale, box, dot, drawing, group, line, shortened, text
from pytest_amp.text.amounts import counted

WIDTH = 860.0
#: Left and right edge of a plot in pixels, between the names of its rows and their values.
LEFT, RIGHT = 330.0, 760.0
#: Height of a row in pixels.
ROW = 20.0
#: Maximum number of rows of one plot, for legibility.
ROWS = 25
#: Largest ratio of an error to its limit on the axis; longer bars are clipped.
MOST = 1.5
#: Maximum number of plotted loss scales.
SERIES = 12


@dataclass(frozen=True)
class Plot:
    """Drawing with its title, and a note on how to read it."""

    title: str
    note: str
    svg: str


def plots(
    observations: Sequence[Observation], differing: Iterable[Observation], failures: Iterable[Failure]
) -> list[Plot]:
    """Return the plots for which there are data. ``differing`` are the differences from the baseline."""
    failing = {(failure.family, failure.test, failure.target) for failure in failures}
    result = (changes(differing), margins(observations, failing), speedups(observations), scales(observations))
    return [plot for plot in result if plot is not None]


def changes(differing: Iterable[Observation]) -> Plot | None:
    """Plot how many observations differ from the baseline, by family and verdict."""
    counts = families(differing)
    if not counts:
        return None
    largest = max(sum(verdicts.values()) for verdicts in counts.values())
    x = Scale(0, largest, 160.0, RIGHT)
    shapes = []
    for row, (family, verdicts) in enumerate(counts.items()):
        y, start = row * 26 + 4.0, 0
        shapes.append(text(150, y + 14, family, anchor="end"))
        for verdict in ORDER:
            count = verdicts.get(verdict, 0)
            if not count:
                continue
            left, width = x(start), max(x(start + count) - x(start) - 1, 2)
            parts = [box(left, y, width, 19, f"v-{verdict.value}")]
            if width > 24:  # pixels: a narrower part has no space for its count
                parts.append(text(left + width / 2, y + 14, str(count), anchor="middle", kind="inside"))
            shapes.append(group(f"{family}: {titled(count, verdict)}", *parts))
            start += count
        shapes.append(text(x(start) + 6, y + 14, str(start), kind="small"))
    shapes += _legend(
        [verdict for verdict in ORDER if any(verdict in verdicts for verdicts in counts.values())], len(counts)
    )
    height = len(counts) * 26 + 34
    return Plot(
        "What changed, by family",
        "Each bar is a family of checks; its parts are what its observations became.",
        drawing(WIDTH, height, "differences by family and verdict", *shapes),
    )


def _legend(verdicts: Sequence[Verdict], rows: int) -> list[str]:
    shapes, x, y = [], 160.0, rows * 26 + 14.0
    for verdict in verdicts:
        shapes += [box(x, y, 11, 11, f"v-{verdict.value}"), text(x + 16, y + 10, TITLES[verdict], kind="small")]
        x += 40 + 6.6 * len(TITLES[verdict])
    return shapes


def margins(observations: Iterable[Observation], failing: Container[tuple[str, str, tuple[str, str]]]) -> Plot | None:
    """Plot the tensors with the largest errors relative to their limits, and the errors of the baseline.

    ``failing`` has the family, name and target of each failed test. If an error exceeds its limit and its test is not
    in ``failing``, the failure was expected.
    """
    rows = []
    for observation in observations:
        value = _finite(observation.value)
        if observation.kind is Kind.ERROR and observation.allowed and value is not None:
            share = value / observation.allowed
            if math.isfinite(share):
                rows.append((share, observation))
    rows.sort(key=lambda row: (-row[0], row[1].key))
    rows = rows[:ROWS]
    if not rows:
        return None
    height = len(rows) * ROW + 26
    # The axis is limited: the error of a known fault may be so large that no other bar would be legible.
    x = Scale(0, min(max(1.0, rows[0][0]), MOST) * 1.02, LEFT, RIGHT)
    shapes = [line(x(1.0), 0, x(1.0), height - 22, "bound"), text(x(1.0), height - 6, "allowed", anchor="middle")]
    shapes += [
        text(x(tick), height - 6, f"{tick:.0%}", anchor="middle", kind="small") for tick in (0.0, 0.25, 0.5, 0.75)
    ]
    for row, (share, observation) in enumerate(rows):
        y, baseline = row * ROW, _finite(observation.baseline)
        tip = f"{observation.key}: {short(observation.value)} of {short(observation.allowed)} allowed, {share:.0%}"
        kind, label = "bar", f"{share:.0%}"
        if share > 1:
            fails = (observation.family, observation.test, observation.target) in failing
            kind, label = ("v-failed", label) if fails else ("v-inconclusive", "expected")
        bar = box(x(0), y + 4, x(share) - x(0), ROW - 8, kind)
        mark = []
        if baseline is not None and observation.allowed:
            position = x(baseline / observation.allowed)
            tip += f"; before {short(observation.baseline)}"
            mark = [line(position, y + 2, position, y + ROW - 2, "before")]
        name = text(LEFT - 8, y + 14, shortened(f"{'-'.join(observation.target)} {observation.name}", 50), anchor="end")
        shapes.append(group(tip, name, bar, *mark, text(RIGHT + 8, y + 14, label, kind="small")))
    return Plot(
        "Errors closest to what is allowed",
        f"The {len(rows)} tensors with the smallest margin; what is beyond the line fails, unless it is a known fault "
        "that was expected. An upright mark is the error before.",
        drawing(WIDTH, height, "errors as shares of what is allowed", *shapes),
    )


def speedups(observations: Iterable[Observation]) -> Plot | None:
    """Plot speedups with their confidence intervals, and their floors: the required speedups."""
    rows = [
        observation
        for observation in observations
        if observation.kind is Kind.RATIO
        and observation.interval is not None
        and observation.better in (Better.HIGHER, None)
    ][: 2 * ROWS]
    values = [value for observation in rows if (value := _finite(observation.value)) is not None]
    if not values:
        return None
    ends = [end for observation in rows for end in (observation.interval or ()) if math.isfinite(end)]
    floors = [
        observation.allowed
        for observation in rows
        if observation.allowed is not None and math.isfinite(observation.allowed)
    ]
    x = Scale(min(0.8, *values, *floors), max(1.2, *values, *ends, *floors) * 1.02, LEFT, RIGHT)
    height = len(rows) * ROW + 26
    shapes = [line(x(1.0), 0, x(1.0), height - 22, "bound")]
    shapes += [text(x(tick), height - 6, f"{tick:g}x", anchor="middle", kind="small") for tick in x.ticks(8)]
    shapes += [_speedup_row(observation, x, row * ROW) for row, observation in enumerate(rows)]
    return Plot(
        "Speedups over float32",
        "A dot is the median, the line through it the interval of the true one; an upright mark is the floor, a hollow "
        "dot the speedup before.",
        drawing(WIDTH, height, "speedups with their intervals and floors", *shapes),
    )


def _speedup_row(observation: Observation, x: Scale, y: float) -> str:
    low, high = observation.interval or (math.nan, math.nan)
    value, baseline, middle = _finite(observation.value), _finite(observation.baseline), y + ROW / 2
    tip = f"{observation.key}: {short(observation.value)} [{low:.3g}, {high:.3g}]"
    shapes = [text(LEFT - 8, y + 14, shortened(f"{'-'.join(observation.target)} {observation.name}", 50), anchor="end")]
    if observation.allowed is not None:
        tip += f", floor {observation.allowed:.3g}"
        shapes.append(line(x(observation.allowed), y + 3, x(observation.allowed), y + ROW - 3, "before"))
    if baseline is not None:
        tip += f", before {baseline:.3g}"
        shapes.append(dot(x(baseline), middle, 4, "hollow"))
    shapes.append(line(x(low), middle, x(high), middle, "interval"))
    if value is not None:
        shapes += [dot(x(value), middle, 4, "bar"), text(RIGHT + 8, y + 14, f"{value:.3g}x", kind="small")]
    return group(tip, *shapes)


def scales(observations: Iterable[Observation]) -> Plot | None:
    """Plot the loss scale of each GradScaler over the iterations of a training, on a logarithmic axis."""
    rows = [(observation, values) for observation in observations if (values := _loss_scales(observation)) is not None][
        :SERIES
    ]
    if not rows:
        return None
    columns, column_width, plot_height = 3, WIDTH / 3, 110.0
    shapes = []
    for number, (observation, values) in enumerate(rows):
        left, top = (number % columns) * column_width + 46, (number // columns) * (plot_height + 34) + 18
        shapes.append(_scale_plot(observation, values, left, top, column_width - 66, plot_height))
    height = math.ceil(len(rows) / columns) * (plot_height + 34) + 10
    return Plot(
        "GradScaler's scale over iterations",
        "Upwards is a doubling; a step down is an overflow whose step was skipped.",
        drawing(WIDTH, height, "scales over iterations", *shapes),
    )


def _scale_plot(  # noqa: PLR0913, PLR0917  # the position and size of the plot
    observation: Observation, values: Sequence[float], left: float, top: float, width: float, height: float
) -> str:
    exponents = [math.log2(value) for value in values]
    x = Scale(0, len(values), left, left + width)
    low, high = min(exponents), max(exponents)
    y = Scale(low - 0.3, high + 0.3, top + height - 14, top)
    path = " ".join(
        f"{'M' if step == 0 else 'L'}{x(step):g} {y(value):g} L{x(step + 1):g} {y(value):g}"
        for step, value in enumerate(exponents)
    )
    marks = [text(left - 5, y(end) + 4, _scale_label(end), anchor="end", kind="small") for end in sorted({low, high})]
    axis = line(left, top + height - 14, left + width, top + height - 14, "axis")
    steps = text(left + width, top + height, f"{counted(len(values), 'iteration')}", anchor="end", kind="small")
    title = text(left, top - 6, shortened(f"{'-'.join(observation.target)} {observation.name}", 34), kind="small")
    return group(
        f"{observation.key}: {short(observation.value)}",
        f'<path d="{path}" class="series"/>',
        *marks,
        axis,
        steps,
        title,
    )


def _scale_label(exponent: float) -> str:
    """Return the label of a scale: ``2^16`` for a power of two, else a decimal number."""
    return f"2^{exponent:g}" if exponent.is_integer() else f"{2.0**exponent:.3g}"


def _loss_scales(observation: Observation) -> list[float] | None:
    """Return the loss scales that an observation of a training consists of; None for any other observation.

    The result is also None if a scale is not positive and finite.
    """
    if not observation.name.endswith("scale") or not isinstance(observation.value, list) or len(observation.value) < 2:
        return None
    values = [_positive(value) for value in observation.value]
    return [value for value in values if value is not None] if all(value is not None for value in values) else None


def _positive(value: Value) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number < math.inf else None


def _finite(value: Value) -> float | None:
    """Return ``value`` as a float if it is a finite number; None for any other value, including a boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
