"""Margins of planted defects over healthy tests: ``python -m tools.planted_margins DEVICE REPORT [DEFECT ...]``.

The tests of the gradients and kernels suites that notice a numerical defect are run without a defect, together with the
zoo, and then again with their defects, in both dtypes. ``REPORT`` is a JSON file of their measurements (see
``observed``). A defect that it contains is not measured again, so that an interrupted run can be resumed. The output is
the tables of docs/lab/planted.md. The exit status is 1 if a defect goes unnoticed, if no measure of a defect is
``ENOUGH`` times that of the worst test without a defect, or if a test without a defect fails.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.planted.table import VARIABLE, Defect, all_defects
from tests.planting import PLUGIN, planting, run, selection
from tools.planted_margins import observed
from tools.planted_margins.tables import DTYPES, Found, Report, tables, too_near

_SUITE, _KERNELS = "suites/gradients", "suites/kernels"
_STEP, _WIDER = f"{_SUITE}/test_zoo.py::test_step", f"{_SUITE}/test_wider_zoo.py::test_step"
_OPERATOR = f"{_SUITE}/test_operators.py::test_operator"
ZOO = (_STEP, _WIDER)
_TIMEOUT = 300.0
_AT_ONCE = max(2, min(6, (os.cpu_count() or 2) - 2))

#: Additional tests of gradients and kernels for defects whose own test is in another suite, or runs in one dtype only.
ALSO: dict[str, str] = {
    "avg_pool_adds_in_low_precision": (
        f"{_KERNELS}/test_long_operators.py::test_sums_do_not_lose_with_length[cpu-bf16-avg_pool2d]"
    ),
    "cast_loses_history": f"{_STEP}[cpu-bf16-mlp]",
    "cat_promotes_to_the_first": f"{_OPERATOR}[cpu-bf16-cat_of_both_dtypes]",
    "cat_stack_narrow": f"{_OPERATOR}[cpu-bf16-cat_of_both_dtypes]",
    "city_block_distances_rounded": (
        f"{_KERNELS}/test_arguments.py::test_operator_with_arguments[cpu-bf16-cdist of order 1]"
    ),
    "conversions_truncate": f"{_OPERATOR}[cpu-bf16-linear]",
    "layer_norm_low_precision": f"{_STEP}[cpu-bf16-decoder]",
    "matmul_casts_through_float16": f"{_OPERATOR}[cpu-bf16-matmul]",
    "micro_batches_add_up_in_bf16": (
        f"{_SUITE}/test_accumulation.py::test_sums_of_micro_batches_stay_in_float32[cpu-bf16]"
    ),
    "mse_loss_is_hollow": f"{_WIDER}[cpu-bf16-loss_mse]",
    "mse_loss_low_precision": f"{_WIDER}[cpu-bf16-loss_mse]",
    "products_of_fp16_by_way_of_bf16": f"{_STEP}[cpu-bf16-mlp]",
    "small_gradients_flushed": f"{_STEP}[cpu-bf16-mlp]",
    "weight_gradients_five_percent_short": f"{_SUITE}/test_queries.py::test_nothing_asks_for_autocast[cpu-bf16-layers]",
}


def guards(defect: Defect, device: str) -> list[str]:
    """Return the ids, for bf16, of the tests of gradients and kernels that notice a defect on a device."""
    test = None if defect.device == "cuda" else defect.test_on(device)
    also = ALSO.get(defect.name)
    tests = [] if test is None else [selection(test)]
    tests += [] if also is None else [also.replace("[cpu-", f"[{device}-")]
    return [_in(test, "bf16") for test in tests if test.startswith((_SUITE, _KERNELS))]


def _in(test: str, dtype: str) -> str:
    return re.sub(r"(\[[a-z]+)-(?:bf16|fp16)", rf"\1-{dtype}", test)


def measured(tests: Iterable[str], device: str, *defect: str) -> Found:
    """Run tests in both dtypes, and return their measurements by id. ``tests`` are prefixes of ids."""
    plugins = ["-p", "tools.planted_margins.observed", *(word for name in defect for word in planting(name))]
    arguments = [*PLUGIN, *plugins, "-p", "no:xdist", "-p", "no:randomly", "-q", "--tb=no"]
    arguments += [f"--amp-device={device}", f"--amp-dtype={','.join(DTYPES)}", "--amp-speed=off", "--amp-tier=all"]
    ids = "\n".join(_in(test, dtype) for test in tests for dtype in DTYPES)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "margins.json"
        environment = {**os.environ, VARIABLE: device, observed.TO: str(output), observed.OF: ids}
        functions = sorted({test.partition("[")[0] for test in tests})
        _, text = run([*arguments, *functions], Path(folder) / "output", timeout=_TIMEOUT, environment=environment)
        results: Found = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    if not results:
        sys.stderr.write(f"{' '.join(defect) or 'healthy'}: nothing ran\n{text[-3000:]}\n")
    return results


def _healthy(tests: Iterable[str], known: Iterable[str]) -> list[list[str]]:
    """Group the tests that were not measured yet into jobs of similar time: each zoo, and shares of the remaining."""
    measured_ids = {_in(test, "bf16") for test in known}
    missing = [test for test in sorted(set(tests)) if not any(name.startswith(test) for name in measured_ids)]
    zoos = [[test for test in missing if test.startswith(zoo)] for zoo in ZOO]
    remaining = [test for test in missing if not test.startswith(ZOO)]
    return [group for group in (*zoos, *(remaining[i::_AT_ONCE] for i in range(_AT_ONCE))) if group]


def main(arguments: list[str]) -> int:
    """Measure the defects missing in the report, and print its tables."""
    device, path, *names = arguments
    file = Path(path)
    report = Report(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else Report()
    noticed = {row.name: guards(row, device) for row in all_defects() if not names or row.name in names}
    noticed = {name: tests for name, tests in noticed.items() if tests}
    every = [test for tests in noticed.values() for test in tests]
    jobs: list[tuple[str, list[str]]] = [
        *(("", tests) for tests in _healthy([*every, *(() if names else ZOO)], report.healthy)),
        *((name, tests) for name, tests in noticed.items() if name not in report.planted),
    ]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(measured, tests, device, *filter(None, [name])): name for name, tests in jobs}
        for future in as_completed(running):
            name, results = running[future], future.result()
            if not name:
                report.healthy.update(results)
            elif results:
                report.planted[name] = results
            file.write_text(json.dumps(vars(report), indent=1), encoding="utf-8")
    order = [row.name for row in all_defects()]
    report.planted = dict(sorted(report.planted.items(), key=lambda entry: order.index(entry[0])))
    sys.stdout.write(tables(report))
    near = [*too_near(report), *(f"{name} (nothing ran)" for name in noticed if name not in report.planted)]
    red = [test for test, entry in report.healthy.items() if entry["outcome"] == "failed"]
    sys.stdout.write(
        f"\n{len(report.planted)} planted, green or too near: {', '.join(near) or 'none'}; "
        f"{len(report.healthy)} healthy tests, red: {', '.join(red) or 'none'}\n"
    )
    return 1 if near or red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
