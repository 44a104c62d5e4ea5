"""Long-run study of AdamW with weights and states in bfloat16 against float32 masters, over thousands of steps.

``python -m pytest_amp.training.study docs/lab [STEPS [SEEDS]]`` writes the table and the plot of docs/lab/training.md.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_amp.cases import loss_of, map_tensors
from pytest_amp.training.low_adamw import LowAdamW, Rounding, Storage
from pytest_amp.training.tasks import characters

BF16 = torch.bfloat16
#: Peak of the learning rate: a tenth of that of the short task, as in long trainings.
_RATE, _WARM_UP = 1e-3, 100

STORAGES = (
    Storage("float32 masters and states"),
    Storage("float32 masters, first moment bf16", first=BF16),
    Storage("float32 masters, second moment bf16", second=BF16),
    Storage("float32 masters, both moments bf16", first=BF16, second=BF16),
    Storage("bf16 weights, float32 states", weights=BF16),
    Storage("bf16 weights and states", weights=BF16, first=BF16, second=BF16),
    Storage("bf16 weights and states, stochastic rounding", BF16, BF16, BF16, Rounding.STOCHASTIC),
    Storage("bf16 weights and states, Kahan sum", BF16, BF16, BF16, Rounding.KAHAN),
    Storage("bf16 weights, float32 states, stochastic rounding", weights=BF16, rounding=Rounding.STOCHASTIC),
    Storage("bf16 weights, float32 states, Kahan sum", weights=BF16, rounding=Rounding.KAHAN),
)


@dataclass(frozen=True)
class Trained:
    """Losses of a training, and the share of updates that rounded away, overall and in its last tenth."""

    storage: Storage
    losses: list[float]
    lost: float
    lost_late: float

    @property
    def final(self) -> float:
        """Return the mean loss of the last twentieth."""
        last = self.losses[-max(1, len(self.losses) // 20) :]
        return sum(last) / len(last)


def rate_at(step: int, steps: int) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine down to zero."""
    if step < _WARM_UP:
        return _RATE * (step + 1) / _WARM_UP
    return _RATE * 0.5 * (1 + math.cos(math.pi * (step - _WARM_UP) / max(1, steps - _WARM_UP)))


def train(storage: Storage, *, steps: int, seed: int = 0, device: torch.device | None = None) -> Trained:
    """Train the character decoder under autocast(bfloat16), with a fixed initialisation and order of batches."""
    case, where = characters().case, device or torch.device("cpu")
    model = case.realise(seed=seed).model.to(where, storage.weights)
    optimizer = LowAdamW(model.parameters(), storage, seed=seed)
    losses: list[float] = []
    counts: list[tuple[int, int]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        for step in range(steps):
            model.zero_grad()
            batch = map_tensors(lambda x: x.to(where), case.batch())
            with torch.autocast(where.type, BF16):
                loss = loss_of(case.loss(model, batch))
            torch.autograd.backward(loss)
            counts.append(optimizer.step(rate_at(step, steps)))
            losses.append(loss.item())
    return Trained(storage, losses, _share(counts), _share(counts[-max(1, steps // 10) :]))


def _share(counts: list[tuple[int, int]]) -> float:
    return sum(stayed for _, stayed in counts) / max(1, sum(wanted for wanted, _ in counts))


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
    for storage, found in outcomes:
        finals = [each.final for each in found]
        lost, late = (sum(values) / len(found) for values in ([o.lost for o in found], [o.lost_late for o in found]))
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
    curves = [_smooth(each.losses) for each in outcomes]
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
    parts += _beside_masters(
        curves, left=right + 60, right=width - 20, top=top + 36 + 18 * len(outcomes), bottom=bottom
    )
    return "\n".join([*parts, "</svg>", ""])


def _beside_masters(curves: list[list[float]], *, left: int, right: int, top: int, bottom: int) -> list[str]:
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
    """Run the study and write its table into ``docs/lab/training.md`` and its plot beside it."""
    from pytest_amp.scaler.page import replaced

    folder = Path(arguments[0])
    steps = int(arguments[1]) if len(arguments) > 1 else 3000
    seeds = int(arguments[2]) if len(arguments) > 2 else 2
    torch.set_num_threads(1)
    started, outcomes = time.monotonic(), []
    for storage in STORAGES:
        found = [train(storage, steps=steps, seed=seed) for seed in range(seeds)]
        outcomes.append((storage, found))
        say(f"{storage.name}: {found[0].final:.4f}, {time.monotonic() - started:.0f} s")
    date = dt.datetime.now(dt.timezone.utc).date()
    head = f"torch {torch.__version__}, CPU, {date}, {steps} steps, {seeds} seeds:"
    page = folder / "training.md"
    block = "\n".join(["", head, "", *table(outcomes), "", "![losses over steps](training.svg)", ""])
    page.write_text(replaced(page.read_text(encoding="utf-8"), "study", block), encoding="utf-8")
    (folder / "training.svg").write_text(plot([found[0] for _, found in outcomes]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
