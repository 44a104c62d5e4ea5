"""Study of AdamW with weights and states in bfloat16: the second table of docs/lab/training.md, and the plot.

``python -m tools.pages.stored_weights docs [STEPS [SEEDS]]`` trains with each storage, and writes both.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from pytest_amp.training.low_adamw import Storage
from pytest_amp.training.study import STORAGES, Trained, train
from tools.pages.part import replaced


def table(outcomes: list[tuple[Storage, list[Trained]]]) -> Iterator[str]:
    """Yield a table in Markdown: a row for each storage, the mean over its seeds and their range."""
    head = (
        "kept between steps",
        "bytes a weight",
        "final loss",
        "over the seeds",
        "updates that round away",
        "in the last tenth",
    )
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for storage, outcome in outcomes:
        finals = [outcome.final for outcome in outcome]
        lost, late = (
            sum(values) / len(outcome) for values in ([o.lost for o in outcome], [o.lost_late for o in outcome])
        )
        yield (
            f"| {storage.name} | {storage.bytes_each} | {sum(finals) / len(finals):.4f} "
            f"| {min(finals):.4f} to {max(finals):.4f} | {lost:.1%} | {late:.1%} |"
        )


_COLOURS = (
    "#222222",
    "#1b7837",
    "#762a83",
    "#d6604d",
    "#4393c3",
    "#b2182b",
    "#e6ab02",
    "#2166ac",
    "#a6761d",
    "#66a61e",
)


def plot(outcomes: list[Trained]) -> str:
    """Return an SVG of the losses (logarithmic, the mean of each fiftieth of the run) over steps."""
    width, height, left, top, legend = 900, 420, 60, 20, 330
    curves = [_smooth(outcome.losses) for outcome in outcomes]
    low = math.log(min(min(curve) for curve in curves))
    high = math.log(max(max(curve) for curve in curves))
    right, bottom = width - legend, height - 40

    def place(index: int, count: int, value: float) -> str:
        x = left + (right - left) * (index + 0.5) / count
        y = bottom - (bottom - top) * (math.log(value) - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    parts = [
        f'{start} font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888"/>',
    ]
    for part in range(5):
        value = math.exp(low + (high - low) * part / 4)
        y = float(place(0, 1, value).split(",")[1])
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        step = len(outcomes[0].losses) * part // 4
        parts.append(
            f'<text x="{left + (right - left) * part / 4:.1f}" y="{bottom + 16}" text-anchor="middle">{step}</text>'
        )
    parts.append(
        f'<text x="{(left + right) / 2}" y="{height - 6}" text-anchor="middle">steps; loss, logarithmic</text>'
    )
    for index, (outcome, curve) in enumerate(zip(outcomes, curves, strict=True)):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(place(at, len(curve), value) for at, value in enumerate(curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = top + 14 + 18 * index
        parts.append(f'<text x="{right + 14}" y="{y}" fill="{colour}">{outcome.storage.name}</text>')
    parts += _with_masters(curves, left=right + 60, right=width - 20, top=top + 36 + 18 * len(outcomes), bottom=bottom)
    return "\n".join([*parts, "</svg>", ""])


def _with_masters(curves: list[list[float]], *, left: int, right: int, top: int, bottom: int) -> list[str]:
    """Return a small plot of the second half: losses divided by the masters' (the first curve), if they are close."""
    half = len(curves[0]) // 2
    ratios = [[x / master for x, master in zip(curve, curves[0], strict=True)][half:] for curve in curves]
    close = {index: values for index, values in enumerate(ratios) if values and max(values) < 1.25}
    low, high = (bound(bound(values) for values in close.values()) for bound in (min, max))
    high = max(high, low + 1e-6)
    parts = [
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{(left + right) // 2}" y="{bottom + 16}" text-anchor="middle">second half, by masters</text>',
    ]
    for value in (low, high):
        y = bottom - (bottom - top) * (value - low) / (high - low)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    for index, values in close.items():
        points = " ".join(
            f"{left + (right - left) * (at + 0.5) / len(values):.1f},"
            f"{bottom - (bottom - top) * (value - low) / (high - low):.1f}"
            for at, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[index % len(_COLOURS)]}"/>')
    return parts


def _smooth(losses: list[float]) -> list[float]:
    size = max(1, len(losses) // 50)
    return [sum(losses[at : at + size]) / size for at in range(0, len(losses) - size + 1, size)]


def main(arguments: list[str], *, say: Callable[[str], object] = print) -> None:
    """Run the study and write its table into ``docs/lab/training.md`` and its plot into the same folder."""
    folder = Path(arguments[0])
    steps = int(arguments[1]) if len(arguments) > 1 else 3000
    seeds = int(arguments[2]) if len(arguments) > 2 else 2
    torch.set_num_threads(1)
    started, outcomes = time.monotonic(), []
    for storage in STORAGES:
        result = [train(storage, steps=steps, seed=seed) for seed in range(seeds)]
        outcomes.append((storage, result))
        say(f"{storage.name}: {result[0].final:.4f}, {time.monotonic() - started:.0f} s")
    date = dt.datetime.now(dt.timezone.utc).date()
    head = f"torch {torch.__version__}, CPU, {date}, {steps} steps, {seeds} seeds:"
    page = folder / "training.md"
    block = "\n".join(["", head, "", *table(outcomes), "", "![losses over steps](training.svg)", ""])
    page.write_text(replaced(page.read_text(encoding="utf-8"), "study", block), encoding="utf-8")
    (folder / "training.svg").write_text(plot([outcome[0] for _, outcome in outcomes]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
