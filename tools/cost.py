"""Cost of ``check_gradients`` over the real models, in plain steps, and its memory in sizes of the weights.

``python -m tools.cost [--device cuda] [--dtype fp16] [NAME …]`` prints a table in Markdown, a line as soon
as a model is measured, and the medians at its end. Each model has a process of its own, whose peak is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, dataclass

import torch

from pytest_amp.cases import Case, loss_of, mlp
from pytest_amp.devices import Device, find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.numerics.step import counted
from pytest_amp.precision import BF16, FP16
from tests.project import ROOT
from tests.real_models import torchvision_operators
from tests.real_models.registry import MODELS

PRECISIONS = {precision.name: precision for precision in (BF16, FP16)}
_PLAIN_STEPS = 5


@dataclass(frozen=True)
class Cost:
    """Cost of one check: ``plain`` seconds of a float32 step, ``seconds`` and ``steps`` of the check.

    ``weights`` are the bytes of the parameters, ``memory`` those by which the check's peak is above that of the step.
    """

    model: str
    plain: float
    seconds: float
    steps: int
    weights: int
    memory: int
    verdict: str

    def __str__(self) -> str:
        """Return the row of the table."""
        ratio, memory = self.seconds / self.plain, self.memory / self.weights
        cells = f"{self.plain * 1e3:.1f}", f"{self.steps}", f"{ratio:.0f}", f"{memory:.1f}", self.verdict
        return f"| `{self.model}` | {' | '.join(cells)} |"


def peak(device: torch.device) -> int:
    """Return the largest memory that this process has had on a device, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(name: str, device_name: str, dtype: str) -> Cost:
    """Run float32 steps of a model, then the check of it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torchvision_operators.provide()
    row = next(row for row in MODELS if row.name == name)
    case, device = Case(name, row.build, row.batch, row.loss), find_device(device_name)
    warm_up(device, dtype)
    realised = case.realise(seed=0).on(device.torch_device)
    weights = sum(parameter.nbytes for parameter in realised.model.parameters())
    times = []
    for _ in range(_PLAIN_STEPS):
        begin = time.perf_counter()
        loss_of(case.loss(realised.model, realised.batch)).backward()  # type: ignore[no-untyped-call]  # torch's
        if device.type == "cuda":
            torch.cuda.synchronize(device.torch_device)
        times.append(time.perf_counter() - begin)
    before, begin, verdict = peak(device.torch_device), time.perf_counter(), "green"
    with counted() as count:
        try:
            check_gradients(case, Conditions(device, PRECISIONS[dtype]), lambda *_, **__: None)
        except AmpFailure:
            verdict = "red"
    seconds = time.perf_counter() - begin
    memory = peak(device.torch_device) - before
    return Cost(name, statistics.median(times), seconds, count.steps, weights, memory, verdict)


def write(line: str) -> None:
    """Write a line of the table at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def warm_up(device: Device, dtype: str) -> None:
    """Import the modules that the first check of a process imports, a cost that a user's second test does not have."""
    check_gradients(mlp(), Conditions(device, PRECISIONS[dtype]), lambda *_, **__: None)


def main(arguments: list[str]) -> None:
    """Measure each model in a child process, and print the table."""
    parser = argparse.ArgumentParser(description="Measure what check_gradients costs.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bf16", choices=PRECISIONS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        write(json.dumps(asdict(measured(options.names[0], options.device, options.dtype))))
        return
    write("| model | plain step, ms | steps | plain steps of time | weights of memory | verdict |")
    write("| --- | ---: | ---: | ---: | ---: | --- |")
    costs = []
    for row in MODELS:
        if row.missing is not None or (options.names and row.name not in options.names):
            continue
        command = [sys.executable, "-m", __spec__.name, "--child", "--device", options.device, "--dtype", options.dtype]
        child = subprocess.run(
            [*command, row.name], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
        )
        costs.append(Cost(**json.loads(child.stdout.splitlines()[-1])))
        write(str(costs[-1]))
    if costs:
        median = statistics.median
        write(
            f"\nMedian of {len(costs)} models in {options.dtype} on {options.device}, torch {torch.__version__}: "
            f"{median(cost.steps for cost in costs):.0f} steps, the time of "
            f"{median(cost.seconds / cost.plain for cost in costs):.0f} plain steps, "
            f"{median(cost.memory / cost.weights for cost in costs):.1f} times the weights of memory."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
