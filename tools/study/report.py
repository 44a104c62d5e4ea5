"""Page of the study of transformers: tables, and their answers to common questions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pytest_amp.speed.peaks import peaks_of
from tools.study.grid import PRECISIONS, SIZES, Cell
from tools.study.results import Results, rows, speedup, value


def as_markdown(results: Results, pictures: Iterable[str] = ()) -> str:
    """Format the whole page."""
    where = ", ".join(f"{name} {value}" for name, value in results.provenance.items() if value != "None")
    when = " to ".join(sorted({min(results.dates), max(results.dates)})) if results.dates else "on an unknown day"
    about = (
        f"{len(results.found)} measurements, {when}, on {where}. Decoders with a vocabulary of 10 000 and an "
        "MLP four times as wide; AdamW fused, fp16 with its scaler. Times are medians; *device* is the step captured "
        "in a CUDA graph and replayed, *step* what a loop in Python waits for. *OOM*: it does not fit.\n"
    )
    parts = [
        "# Transformers in four precisions\n",
        about,
        *(f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})\n" for name in pictures),
        *_answers(results),
        *_tables(results),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _tables(results: Results) -> Iterator[str]:
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in rows(results):
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
        yield "\n".join("| " + " | ".join(_line(results, cell)) + " |" for cell in cells) + "\n"


def _line(results: Results, cell: Cell) -> list[str]:
    tf32, fp32, fp16 = (replace(cell, precision=precision) for precision in ("tf32", "fp32", "fp16"))
    peak, whole = value(results, cell, "peak"), value(results, fp32, "peak")
    return [
        cell.size,
        str(cell.context),
        *(_time(results, replace(cell, precision=precision)) for precision in PRECISIONS),
        _number(speedup(results, cell, "fp32", "device")),
        _number(speedup(results, cell, "tf32", "device")),
        _number(speedup(results, fp16, "tf32", "device")),
        _number(speedup(results, tf32, "fp32", "device")),
        _number(speedup(results, cell, "tf32", "step")),
        _share(value(results, fp32, "products")),
        _share(value(results, tf32, "products")),
        _number(peak / 1e9 if peak else None),
        _number(peak / whole if peak and whole else None),
    ]


def _time(results: Results, cell: Cell) -> str:
    if results.found.get(cell, {}).get("out_of_memory"):
        return "OOM"
    time = value(results, cell, "device_time")
    if time is None and (step := value(results, cell, "step_time")) is not None:
        return f"{1000 * step:.2f} (step)"
    return "–" if time is None else f"{1000 * time:.2f}"  # noqa: RUF001  # nothing was measured


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}"  # noqa: RUF001  # as above


def _share(number: float | None) -> str:
    return "–" if number is None else f"{number:.0%}"  # noqa: RUF001  # as above


def _answers(results: Results) -> Iterator[str]:
    """Format the answers that the measured numbers give."""
    yield "## What it says\n"
    about = (_by_size, _tf32, _fp16, _attention, _memory, _warm_up, _doubts)
    lines = [line for answer in about for line in answer(results)]
    yield "\n".join(f"- {line}" for line in lines) + "\n" if lines else "Too little was measured.\n"


def _each(results: Results, mode: str, attention: str = "sdpa") -> list[Cell]:
    return [cell for cell in rows(results) if cell.mode == mode and cell.attention == attention]


def _range(numbers: Iterable[float | None], form: str = ".2f") -> str | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    low, high = f"{min(known):{form}}", f"{max(known):{form}}"
    return low if low == high else f"{low} to {high}"


def _by_size(results: Results) -> Iterator[str]:
    for mode in ("forward+backward", "step"):
        for size in SIZES:
            cells = [cell for cell in _each(results, mode) if cell.size == size]
            gained = [
                f"{ratio} over {name} in {time} time"
                for over, name, time in (
                    ("tf32", "TF32", "device"),
                    ("tf32", "TF32", "step"),
                    ("fp32", "fp32", "device"),
                )
                if (ratio := _range(speedup(results, cell, over, time) for cell in cells))
            ]
            if gained:
                yield f"**{size}, {mode}**: bf16 {', '.join(gained)}{_because(results, cells)}."


def _because(results: Results, cells: Iterable[Cell]) -> str:
    """Return the share of products in float32's time, and the speedup if only products were faster."""
    whole = [value(results, replace(cell, precision="fp32"), "products") for cell in cells]
    shares = _range(whole, ".0%")
    if shares is None:
        return ""
    peaks = peaks_of(results.provenance.get("gpu", ""))
    rate = peaks.ceiling("fp32", "bf16") if peaks else None
    alone = _range((1 / ((1 - share) + share / rate) for share in whole if share is not None), ".1f") if rate else None
    if alone is None:
        return f"; products are {shares} of fp32's time"
    return (
        f"; products are {shares} of fp32's time: they alone, at the {rate:.1f} of the card's peak rates, give {alone}"
    )


def _tf32(results: Results) -> Iterator[str]:
    cells = [replace(cell, precision="tf32") for cell in _each(results, "forward+backward")]
    gained = _range(speedup(results, cell, "fp32", "device") for cell in cells)
    if gained:
        yield f"**TF32 end to end** over IEEE fp32, forward and backward: {gained}."


def _fp16(results: Results) -> Iterator[str]:
    for batch in sorted({cell.batch for cell in results.found}):
        ratios = [
            before / now
            for cell in _each(results, "forward+backward")
            if cell.batch == batch
            and (before := value(results, cell, "device_time"))
            and (now := value(results, replace(cell, precision="fp16"), "device_time"))
        ]
        shown = _range(ratios)
        if shown:
            yield f"**fp16 over bf16**, batch {batch}, forward and backward in device time: {shown}."


def _attention(results: Results) -> Iterator[str]:
    for precision in ("tf32", "bf16"):
        ratios = [
            before / now
            for cell in _each(results, "forward+backward")
            if (before := value(results, replace(cell, precision=precision, attention="math"), "device_time"))
            and (now := value(results, replace(cell, precision=precision), "device_time"))
        ]
        shown = _range(ratios)
        if shown:
            yield f"**What fused attention adds** in {precision}, forward and backward in device time: {shown}."


def _memory(results: Results) -> Iterator[str]:
    for mode in ("forward+backward", "step"):
        ratios = [
            now / before
            for cell in _each(results, mode)
            if (before := value(results, replace(cell, precision="fp32"), "peak"))
            and (now := value(results, cell, "peak"))
        ]
        shown = _range(ratios)
        if shown:
            yield f"**Peak memory**, {mode}: bf16 takes {shown} times what fp32 does."
    tried: dict[Cell, list[int]] = {}
    for cell, result in results.found.items():
        contexts = tried.setdefault(replace(cell, context=0, warm_up="own"), [])
        contexts += [] if result.get("out_of_memory") else [cell.context]
    full = {replace(cell, context=0) for cell, result in results.found.items() if result.get("out_of_memory")}
    for cell in sorted(full, key=str):
        fits = tried[cell]
        largest = f"the largest context that fits is {max(fits)}" if fits else "no context that was tried fits"
        where = f"{cell.mode}, {cell.attention} attention, batch {cell.batch}"
        yield f"**{cell.size} in {cell.precision}**, {where}: {largest}."


def _warm_up(results: Results) -> Iterator[str]:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (results.found[replace(cell, warm_up="own")], result)
        for cell, result in results.found.items()
        if cell.warm_up == "fp32" and replace(cell, warm_up="own") in results.found
    ]
    pairs = [pair for pair in pairs if all("step_time" in result for result in pair)]
    if pairs:
        first = statistics.median(other["first_calls"][0] / other["step_time"] for _, other in pairs)
        first_call = statistics.median(same["first_calls"][0] / same["step_time"] for same, _ in pairs)
        later = statistics.median(other["step_time"] / same["step_time"] for same, other in pairs)
        yield (
            f"**The precision of the warm-up**: after one in float32 the first call takes {first:.2f} times what later "
            f"calls take, after one in the own precision {first_call:.2f} times; later calls take {later:.2f} times "
            "as long."
        )


def _doubts(results: Results) -> Iterator[str]:
    doubted = [result["doubts"][0] for result in results.found.values() if result.get("doubts")]
    if doubted:
        yield f"**In doubt** are {len(doubted)} measurements, such as by {doubted[0]}; the command measures them again."
