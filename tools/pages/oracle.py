"""Measure the zoo against the oracle: ``python -m tools.pages.oracle [DEVICE]`` prints two Markdown tables.

The first has the noise, excess and distance of each case and dtype, the second the rounding signature of each operator.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections import defaultdict
from contextlib import AbstractContextManager

import torch

from pytest_amp.account import receive
from pytest_amp.cases import Case, wider_zoo, zoo
from pytest_amp.devices import Device, find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import tolerance
from pytest_amp.numerics.compare import compare
from pytest_amp.numerics.oracle import observed_step
from pytest_amp.numerics.oracle.observer import ObservedCall
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.prediction import predict
from pytest_amp.numerics.step import run_step
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.text.quoted import quoted

SEED = 0


def main(arguments: list[str]) -> int:
    """Print the tables for the device named in ``arguments``, by default the CPU."""
    device = find_device(arguments[0] if arguments else "cpu")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {device.describe()}, seed {SEED}\n")  # noqa: T201  # a program's output
    print("| case | dtype | noise | excess | distance | agreement | seconds |\n|---|---|---|---|---|---|---|")  # noqa: T201
    calls: dict[str, list[ObservedCall]] = defaultdict(list)
    for case in (*zoo(), *wider_zoo()):
        for precision in (BF16, FP16):
            line, observed = _measured(case, device, precision)
            calls[precision.name] += observed
            print(line, flush=True)  # noqa: T201
    print(_signatures(calls, device))  # noqa: T201
    return 0


def _measured(case: Case, device: Device, precision: Precision) -> tuple[str, tuple[ObservedCall, ...]]:
    """Format a row of the first table: medians and, in brackets, the worst tensor of 16 elements or more."""
    realised = case.realise(seed=SEED)
    begun = time.perf_counter()
    try:
        prediction = predict(case, realised, device, precision, seed=SEED)
        seconds = time.perf_counter() - begun

        def region() -> AbstractContextManager[object]:
            return device.autocast(precision.dtype)

        scale, real = prediction.loss_scale, realised.on(device.torch_device)
        amp = run_step(case, real, region, seed=SEED, loss_scale=scale)
        calls = observed_step(case, device, precision.dtype, seed=SEED, loss_scale=scale)
    except (AmpFailure, RuntimeError) as error:
        receive(error)
        return f"| {case.name} | {precision.name} | {quoted(error, 60)} | | | | |", ()
    compared = [
        tensor for tensor in compare(prediction, amp, amp, u=precision.u) if tensor.elements >= tolerance.ENOUGH
    ]
    excess = [tensor.excess_over_noise(precision.u) for tensor in compared]
    far = [tensor.from_model for tensor in compared]
    noise = statistics.median(tensor.noise for tensor in compared) / precision.u
    low = [result for call in calls for result in call.results if result.dtype == precision.dtype]
    agreement = sum(result.equal for result in low) / max(sum(result.elements for result in low), 1)
    return (
        f"| {case.name} | {precision.name} | {noise:.2f} u | {statistics.median(excess):.3f} ({max(excess):.2f}) "
        f"| {statistics.median(far):.3f} ({max(far):.2f}) | {agreement:.4f} | {seconds:.2f} |"
    ), calls


def _signatures(calls: dict[str, list[ObservedCall]], device: Device) -> str:
    """Format the second table: operators with at least 1000 low-precision elements."""
    shares: dict[tuple[str, str], dict[str, tuple[int, int, str]]] = defaultdict(dict)
    for name, observed in calls.items():
        for call in observed:
            for result in call.results:
                if result.dtype not in LOW:
                    continue
                key = (call.operator.removeprefix("aten::"), call.place.direction.value)
                equal, elements, _ = shares[key].get(name, (0, 0, ""))
                shares[key][name] = (equal + result.equal, elements + result.elements, call.model.name.value)
    lines = [
        "",
        f"Signatures on {device.key}:",
        "",
        "| operator | pass | model | bf16 | fp16 |",
        "|---|---|---|---|---|",
    ]
    for (operator, direction), by_dtype in sorted(shares.items()):
        if max(elements for _, elements, _ in by_dtype.values()) < 1000:
            continue
        models = " / ".join(dict.fromkeys(model for *_, model in by_dtype.values()))
        cells = [
            f"{by_dtype[name][0] / by_dtype[name][1]:.4f}" if name in by_dtype else "-" for name in ("bf16", "fp16")
        ]
        lines.append(f"| {operator} | {direction} | {models} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
