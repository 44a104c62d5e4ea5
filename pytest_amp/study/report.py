"""Tables and plots of the study of transformers, and what they say to the questions that people argue about."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_amp.study.grid import PRECISIONS, SIZES, Cell
from pytest_amp.study.results import Results

#: Of a time: the device's own where it was captured.
TIMES = {"device": "device_time", "step": "step_time"}


def write_report(found: Results, folder: Path) -> list[Path]:
    """Write ``transformer.md`` and, with matplotlib, the plots; the files that were written."""
    from pytest_amp.study import plots

    page = folder / "transformer.md"
    pictures = plots.write_plots(found, folder)
    names = [path.name for path in pictures if path.suffix == ".svg"]
    page.write_text(as_markdown(found, names), encoding="utf-8")
    return [page, *pictures]


def as_markdown(found: Results, pictures: Iterable[str] = ()) -> str:
    """The whole page."""
    where = ", ".join(f"{name} {value}" for name, value in found.provenance.items() if value != "None")
    count = len(found.found)
    about = (
        f"{count} measurements on {where}. Decoders with a vocabulary of 10 000 and an MLP four times as wide; AdamW "
        "fused, fp16 with its scaler. Times are medians; *device* is the step captured in a CUDA graph and replayed, "
        "*step* what a loop in Python waits for. *OOM*: it does not fit.\n"
    )
    parts = [
        "# Transformers in four precisions\n",
        about,
        *(f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})\n" for name in pictures),
        *_answers(found),
        *_tables(found),
    ]
    return "\n".join(parts).rstrip() + "\n"


def value(found: Results, cell: Cell, name: str) -> float | None:
    """A number of a cell; None where it was not measured, or did not fit."""
    result = found.found.get(cell, {})
    number = result.get(name)
    return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def speedup(found: Results, cell: Cell, over: str, time: str) -> float | None:
    """How much faster ``cell`` is than the same in ``over``."""
    name = TIMES[time]
    before, now = value(found, replace(cell, precision=over, warm_up="own"), name), value(found, cell, name)
    return before / now if before and now else None


def rows(found: Results) -> list[Cell]:
    """What was measured, but for precision and warm-up, in the order of the grid."""
    seen = {replace(cell, precision="bf16", warm_up="own") for cell in found.found}
    sizes = list(SIZES)
    return sorted(seen, key=lambda c: (c.mode, c.attention, c.batch, sizes.index(c.size), c.context))


def _tables(found: Results) -> Iterator[str]:
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in rows(found):
        groups.setdefault((cell.mode, cell.attention, cell.batch), []).append(cell)
    for (mode, attention, batch), cells in groups.items():
        yield f"## {mode}, {attention} attention, batch {batch}\n"
        head = [
            *("size", "context"),
            *(f"{precision}, ms" for precision in PRECISIONS),
            *("bf16 over fp32", "bf16 over TF32", "fp16 over TF32", "TF32 over fp32"),
            *("bf16 over TF32, step", "products in fp32", "peak bf16, GB", "peak over fp32"),
        ]
        yield "| " + " | ".join(head) + " |\n|" + "---|" * len(head)
        yield "\n".join("| " + " | ".join(_line(found, cell)) + " |" for cell in cells) + "\n"


def _line(found: Results, cell: Cell) -> list[str]:
    tf32, fp32, fp16 = (replace(cell, precision=precision) for precision in ("tf32", "fp32", "fp16"))
    peak, whole = value(found, cell, "peak"), value(found, fp32, "peak")
    return [
        cell.size,
        str(cell.context),
        *(_time(found, replace(cell, precision=precision)) for precision in PRECISIONS),
        _number(speedup(found, cell, "fp32", "device")),
        _number(speedup(found, cell, "tf32", "device")),
        _number(speedup(found, fp16, "tf32", "device")),
        _number(speedup(found, tf32, "fp32", "device")),
        _number(speedup(found, cell, "tf32", "step")),
        _share(value(found, fp32, "products")),
        _number(peak / 1e9 if peak else None),
        _number(peak / whole if peak and whole else None),
    ]


def _time(found: Results, cell: Cell) -> str:
    if found.found.get(cell, {}).get("out_of_memory"):
        return "OOM"
    time = value(found, cell, "device_time") or value(found, cell, "step_time")
    return "–" if time is None else f"{1000 * time:.2f}"  # noqa: RUF001  # nothing was measured


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}"  # noqa: RUF001  # as above


def _share(number: float | None) -> str:
    return "–" if number is None else f"{number:.0%}"  # noqa: RUF001  # as above


def _answers(found: Results) -> Iterator[str]:
    """What the numbers say, as far as they were measured."""
    yield "## What it says\n"
    lines = [*_by_size(found), *_tf32(found), *_fp16(found), *_attention(found), *_memory(found), *_warm_up(found)]
    yield "\n".join(f"- {line}" for line in lines) + "\n" if lines else "Too little was measured.\n"


def _each(found: Results, mode: str, attention: str = "sdpa") -> list[Cell]:
    return [cell for cell in rows(found) if cell.mode == mode and cell.attention == attention]


def _range(numbers: Iterable[float | None]) -> str | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def _by_size(found: Results) -> Iterator[str]:
    for mode in ("forward+backward", "step"):
        for size in SIZES:
            cells = [cell for cell in _each(found, mode) if cell.size == size]
            device = _range(speedup(found, cell, "tf32", "device") for cell in cells)
            step = _range(speedup(found, cell, "tf32", "step") for cell in cells)
            share = _range(value(found, replace(cell, precision="fp32"), "products") for cell in cells)
            if device or step:
                captured = f"{device} in device time and " if device else ""
                products = f"products are {share} of fp32's time" if share else "fp32 was not measured"
                yield f"**{size}, {mode}**: bf16 over TF32 {captured}{step} in step time; {products}."


def _tf32(found: Results) -> Iterator[str]:
    cells = [replace(cell, precision="tf32") for cell in _each(found, "forward+backward")]
    gained = _range(speedup(found, cell, "fp32", "device") for cell in cells)
    if gained:
        yield f"**TF32 end to end** over IEEE fp32, forward and backward: {gained}."


def _fp16(found: Results) -> Iterator[str]:
    for batch in sorted({cell.batch for cell in found.found}):
        ratios = [
            before / now
            for cell in _each(found, "forward+backward")
            if cell.batch == batch
            and (before := value(found, cell, "device_time"))
            and (now := value(found, replace(cell, precision="fp16"), "device_time"))
        ]
        shown = _range(ratios)
        if shown:
            yield f"**fp16 over bf16**, batch {batch}, forward and backward in device time: {shown}."


def _attention(found: Results) -> Iterator[str]:
    for precision in ("tf32", "bf16"):
        ratios = [
            before / now
            for cell in _each(found, "forward+backward")
            if (before := value(found, replace(cell, precision=precision, attention="math"), "device_time"))
            and (now := value(found, replace(cell, precision=precision), "device_time"))
        ]
        shown = _range(ratios)
        if shown:
            yield f"**What fused attention adds** in {precision}, forward and backward in device time: {shown}."


def _memory(found: Results) -> Iterator[str]:
    for mode in ("forward+backward", "step"):
        ratios = [
            now / before
            for cell in _each(found, mode)
            if (before := value(found, replace(cell, precision="fp32"), "peak")) and (now := value(found, cell, "peak"))
        ]
        shown = _range(ratios)
        if shown:
            yield f"**Peak memory**, {mode}: bf16 takes {shown} times what fp32 does."
    for precision in PRECISIONS:
        for size in SIZES:
            tried = [
                (c, r) for c, r in found.found.items() if (c.size, c.precision, c.mode) == (size, precision, "step")
            ]
            fits = [cell.context for cell, result in tried if not result.get("out_of_memory")]
            if len(fits) < len(tried):
                largest = f"the largest context that fits is {max(fits)}" if fits else "no context fits"
                yield f"**{size} in {precision}**, whole step: {largest}."


def _warm_up(found: Results) -> Iterator[str]:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (found.found[replace(cell, warm_up="own")], result)
        for cell, result in found.found.items()
        if cell.warm_up == "fp32" and replace(cell, warm_up="own") in found.found
    ]
    pairs = [pair for pair in pairs if all("step_time" in result for result in pair)]
    if pairs:
        first = statistics.median(other["first_calls"][0] / other["step_time"] for _, other in pairs)
        own = statistics.median(same["first_calls"][0] / same["step_time"] for same, _ in pairs)
        later = statistics.median(other["step_time"] / same["step_time"] for same, other in pairs)
        yield (
            f"**The precision of the warm-up**: after one in float32 the first call takes {first:.2f} times what later "
            f"calls take, after one in the own precision {own:.2f} times; later calls take {later:.2f} times as long."
        )
