"""Page of the study of transformers: tables, and their answers to common questions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pytest_amp.speed.peaks import peaks_of
from tools.study.grid import PRECISIONS, SIZES, Cell
from tools.study.results import Results, rows, speedup, value


def as_markdown(found: Results, pictures: Iterable[str] = ()) -> str:
    """Format the whole page."""
    where = ", ".join(f"{name} {value}" for name, value in found.provenance.items() if value != "None")
    when = " to ".join(sorted({min(found.dates), max(found.dates)})) if found.dates else "on an unknown day"
    about = (
        f"{len(found.found)} measurements, {when}, on {where}. Decoders with a vocabulary of 10 000 and an "
        "MLP four times as wide; AdamW fused, fp16 with its scaler. Times are medians; *device* is the step captured "
        "in a CUDA graph and replayed, *step* what a loop in Python waits for. *OOM*: it does not fit.\n"
    )
    parts = [
        "# Transformers in four precisions\n",
        about,
        *(f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})\n" for name in pictures),
        *_answers(found),
        *_tables(found),
    ]
    return "\n".join(parts).rstrip() + "\n"


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
            *("bf16 over TF32, step", "products in fp32", "in TF32", "peak bf16, GB", "peak over fp32"),
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
        _share(value(found, tf32, "products")),
        _number(peak / 1e9 if peak else None),
        _number(peak / whole if peak and whole else None),
    ]


def _time(found: Results, cell: Cell) -> str:
    if found.found.get(cell, {}).get("out_of_memory"):
        return "OOM"
    time = value(found, cell, "device_time")
    if time is None and (step := value(found, cell, "step_time")) is not None:
        return f"{1000 * step:.2f} (step)"
    return "–" if time is None else f"{1000 * time:.2f}"  # noqa: RUF001  # nothing was measured


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}"  # noqa: RUF001  # as above


def _share(number: float | None) -> str:
    return "–" if number is None else f"{number:.0%}"  # noqa: RUF001  # as above


def _answers(found: Results) -> Iterator[str]:
    """Format the answers that the measured numbers give."""
    yield "## What it says\n"
    about = (_by_size, _tf32, _fp16, _attention, _memory, _warm_up, _doubts)
    lines = [line for each in about for line in each(found)]
    yield "\n".join(f"- {line}" for line in lines) + "\n" if lines else "Too little was measured.\n"


def _each(found: Results, mode: str, attention: str = "sdpa") -> list[Cell]:
    return [cell for cell in rows(found) if cell.mode == mode and cell.attention == attention]


def _range(numbers: Iterable[float | None], form: str = ".2f") -> str | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    low, high = f"{min(known):{form}}", f"{max(known):{form}}"
    return low if low == high else f"{low} to {high}"


def _by_size(found: Results) -> Iterator[str]:
    for mode in ("forward+backward", "step"):
        for size in SIZES:
            cells = [cell for cell in _each(found, mode) if cell.size == size]
            gained = [
                f"{ratio} over {name} in {time} time"
                for over, name, time in (
                    ("tf32", "TF32", "device"),
                    ("tf32", "TF32", "step"),
                    ("fp32", "fp32", "device"),
                )
                if (ratio := _range(speedup(found, cell, over, time) for cell in cells))
            ]
            if gained:
                yield f"**{size}, {mode}**: bf16 {', '.join(gained)}{_because(found, cells)}."


def _because(found: Results, cells: Iterable[Cell]) -> str:
    """Return the share of products in float32's time, and the speedup if only products were faster."""
    whole = [value(found, replace(cell, precision="fp32"), "products") for cell in cells]
    shares = _range(whole, ".0%")
    if shares is None:
        return ""
    peaks = peaks_of(found.provenance.get("gpu", ""))
    rate = peaks.ceiling("fp32", "bf16") if peaks else None
    alone = _range((1 / ((1 - share) + share / rate) for share in whole if share is not None), ".1f") if rate else None
    if alone is None:
        return f"; products are {shares} of fp32's time"
    return (
        f"; products are {shares} of fp32's time: they alone, at the {rate:.1f} of the card's peak rates, give {alone}"
    )


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
    tried: dict[Cell, list[int]] = {}
    for cell, result in found.found.items():
        contexts = tried.setdefault(replace(cell, context=0, warm_up="own"), [])
        contexts += [] if result.get("out_of_memory") else [cell.context]
    full = {replace(cell, context=0) for cell, result in found.found.items() if result.get("out_of_memory")}
    for cell in sorted(full, key=str):
        fits = tried[cell]
        largest = f"the largest context that fits is {max(fits)}" if fits else "no context that was tried fits"
        where = f"{cell.mode}, {cell.attention} attention, batch {cell.batch}"
        yield f"**{cell.size} in {cell.precision}**, {where}: {largest}."


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


def _doubts(found: Results) -> Iterator[str]:
    doubted = [result["doubts"][0] for result in found.found.values() if result.get("doubts")]
    if doubted:
        yield f"**In doubt** are {len(doubted)} measurements, such as by {doubted[0]}; the command measures them again."
