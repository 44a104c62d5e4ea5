"""The study's plots as SVG, if matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.study.grid import SIZES, Cell
from tools.study.results import Results, rows, speedup, value

Number = Callable[[Cell], "float | None"]
#: Function that plots a value of each cell on an axis.
Lines = Callable[[Any, "list[Cell]", Number], None]


def write_plots(results: Results, folder: Path) -> list[Path]:
    """Write plots of speedup and memory, and return their paths; without matplotlib return an empty list."""
    try:
        mpl: Any = import_module("matplotlib")
    except ImportError:
        return []
    mpl.use("Agg")
    # Write text as text instead of paths, and ids that do not depend on a random salt: the file is reproducible.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pytest-amp"})
    written = []
    for mode in ("forward+backward", "step"):
        cells = [cell for cell in rows(results) if cell.mode == mode and cell.attention == "sdpa"]
        if cells:
            name = f"transformer-speedup-{mode.replace('+', '-')}"
            written.append(_saved(_speedups(results, cells, mode), folder, name))
            name = f"transformer-memory-{mode.replace('+', '-')}"
            written.append(_saved(_peaks(results, cells, mode), folder, name))
    return written


def _axes(count: int, title: str) -> tuple[Any, Any]:
    plt: Any = import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(1, count, figsize=(5 * count, 3.6), sharey=True, squeeze=False, layout="constrained")
    figure.suptitle(title)
    return figure, axes[0]


def _lines(axis: Any, cells: list[Cell], number: Number) -> None:
    """Plot values against the context, with a line for each size and batch."""
    for size in SIZES:
        for batch in sorted({cell.batch for cell in cells}):
            points = [(float(c.context), number(c)) for c in cells if (c.size, c.batch) == (size, batch)]
            _line(axis, points, size if len({cell.batch for cell in cells}) == 1 else f"{size}, batch {batch}")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("context")
    contexts = sorted({cell.context for cell in cells})
    axis.set_xticks(contexts, [str(context) for context in contexts])
    axis.grid(alpha=0.3)


def _by_size(axis: Any, cells: list[Cell], number: Number) -> None:
    """Plot values at the smallest batch against the size, with a line for each context."""
    names = [size for size in SIZES if any(cell.size == size for cell in cells)]
    batch = min(cell.batch for cell in cells)
    for context in sorted({cell.context for cell in cells}):
        some = [cell for cell in cells if (cell.context, cell.batch) == (context, batch)]
        _line(axis, [(float(names.index(cell.size)), number(cell)) for cell in some], f"context {context}")
    axis.set_xticks(range(len(names)), names)
    axis.set_xlabel("size")
    axis.grid(alpha=0.3)


def _line(axis: Any, points: list[tuple[float, float | None]], label: str) -> None:
    known = sorted((x, y) for x, y in points if y is not None)
    if known:
        axis.plot(*zip(*known, strict=True), marker="o", label=label)


def _legend(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False)


def _speedups(results: Results, cells: list[Cell], mode: str) -> Any:
    shown = [(time, lines) for lines in _ways(cells) for time in ("device", "step")]
    figure, axes = _axes(len(shown), f"bf16 over TF32, {mode}")
    for axis, (time, lines) in zip(axes, shown, strict=True):
        lines(axis, cells, partial(_speedup, results, time=time))
        axis.set_title(f"{time} time")
        axis.axhline(1, color="grey", linewidth=1)
        _legend(axis)
    axes[0].set_ylabel("times as fast")
    return figure


def _speedup(results: Results, cell: Cell, *, time: str) -> float | None:
    return speedup(results, cell, "tf32", time)


def _peaks(results: Results, cells: list[Cell], mode: str) -> Any:
    def ratio(cell: Cell) -> float | None:
        now, before = value(results, cell, "peak"), value(results, replace(cell, precision="fp32"), "peak")
        return now / before if now and before else None

    ways = _ways(cells)
    figure, axes = _axes(len(ways), f"peak memory, bf16 over fp32, {mode}")
    axes[0].set_ylabel("of fp32's peak")
    for axis, lines in zip(axes, ways, strict=True):
        lines(axis, cells, ratio)
        axis.axhline(1, color="grey", linewidth=1)
        _legend(axis)
    return figure


def _ways(cells: list[Cell]) -> list[Lines]:
    """Return the plots to draw: against the context if it varies, and against the size if it varies or nothing does."""
    ways: list[Lines] = [_lines] if len({cell.context for cell in cells}) > 1 else []
    return [*ways, _by_size] if len({cell.size for cell in cells}) > 1 or not ways else ways


def _saved(figure: Any, folder: Path, name: str) -> Path:
    plt: Any = import_module("matplotlib.pyplot")
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
