"""How much of the band healthy runs use, and how far faults leave it.

``python -m tools.pages.training_bands docs/lab [DEVICE [SEEDS]]`` writes the device's table into docs/lab/training.md.
The width of the band was chosen from these tables.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pytest_amp.devices import Device, find_device
from pytest_amp.precision import LOW
from pytest_amp.scaler import standard_step
from pytest_amp.training.band import Band, band_of
from pytest_amp.training.tasks import Task, characters, images
from pytest_amp.training.trajectory import Setup, TrainingIteration, run
from tools.pages.part import replaced

_HEALTHY, _FAULTY = 8, 2


def gradients_short(iteration: TrainingIteration) -> None:
    """Gradients are 5 % too small."""
    _changed(iteration, lambda gradient: gradient.mul_(0.95))


def gradients_noisy(iteration: TrainingIteration) -> None:
    """Gradients have 10 % of noise."""
    _changed(iteration, lambda gradient: gradient.mul_(1 + 0.1 * torch.randn_like(gradient)))


def weights_rounded(iteration: TrainingIteration) -> None:
    """Weights are rounded to the low dtype after each step."""
    standard_step(iteration)
    with torch.no_grad():
        for parameter in iteration.model.parameters():
            parameter.copy_(parameter.to(iteration.precision.dtype))


def every_eighth_is_left_out(iteration: TrainingIteration) -> None:
    """Every eighth step is not taken."""
    if iteration.index % 8 == 7:
        with iteration.autocast():
            iteration.loss()
    else:
        standard_step(iteration)


FAULTS: tuple[Callable[[TrainingIteration], None], ...] = (
    gradients_short,
    gradients_noisy,
    weights_rounded,
    every_eighth_is_left_out,
)


def _changed(iteration: TrainingIteration, change: Callable[[torch.Tensor], object]) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    scaled: Any = iteration.scaler.scale(loss)
    scaled.backward()
    with torch.no_grad():
        for parameter in iteration.model.parameters():
            if parameter.grad is not None:
                change(parameter.grad)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def rows(task: Task, precision: str, device: Device, *, seeds: int = _HEALTHY) -> Iterator[str]:
    """Yield the rows of a task in a dtype: first the runs without a fault, then each fault."""
    base = Setup(task.case, device, LOW[precision], steps=task.steps, make_optimizer=task.optimizer, fresh=True)
    setups = [replace(base, seed=seed) for seed in range(seeds)]
    bands = [band_of(setup, run(setup, low=False)) for setup in setups]
    margins = [band.margin(run(setup, low=True).losses) for setup, band in zip(setups, bands, strict=True)]
    yield f"| {task.case.name} | {precision} | none, {seeds} seeds | {min(margins):.2f} to {max(margins):.2f} | |"
    for fault in FAULTS:
        yield row_of(fault, setups[:_FAULTY], bands[:_FAULTY])


def row_of(fault: Callable[[TrainingIteration], None], setups: list[Setup], bands: list[Band]) -> str:
    """Return the row of a fault: its smallest margin over ``setups``, and the latest step at which it left a band.

    The margin is the used share of the band's half width (``Band.margin``).
    """
    result = [run(replace(setup, train=fault), low=True).losses for setup in setups]
    pairs = list(zip(result, bands, strict=True))
    least = min(band.margin(losses) for losses, band in pairs)
    left = [band.leaves(losses) for losses, band in pairs]
    steps = "never" if None in left else f"step {max(step for step in left if step is not None)}"
    what = (fault.__doc__ or "").rstrip(".")
    name, precision = setups[0].case.name, setups[0].precision.name
    return f"| {name} | {precision} | {what[0].lower()}{what[1:]} | {least:.2f} | {steps} |"


def main(arguments: list[str]) -> None:
    """Write the table of a device into ``docs/lab/training.md``."""
    torch.set_num_threads(1)
    device = find_device(arguments[1] if len(arguments) > 1 else "cpu")
    head = "| task | dtype | fault | part of the band that is used | left at |"
    seeds = int(arguments[2]) if len(arguments) > 2 else _HEALTHY
    lines: list[str] = []
    for task in (characters(), images()):
        for precision in LOW:
            lines += rows(task, precision, device, seeds=seeds)
    date = dt.datetime.now(dt.timezone.utc).date()
    where = "CPU" if device.type == "cpu" else device.describe()
    block = "\n".join(
        ["", f"torch {torch.__version__}, {where}, {date}:", "", head, "|---|---|---|---|---|", *lines, ""]
    )
    page = Path(arguments[0]) / "training.md"
    written = replaced(page.read_text(encoding="utf-8"), f"margins on {device.type}", block)
    page.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
