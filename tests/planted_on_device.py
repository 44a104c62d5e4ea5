"""Plant each defect of some areas on a device: ``python -m tests.planted_on_device cuda REPORT AREA ... [NAME ...]``.

The ordinary test (tests/test_planted_defects.py) plants them on a CPU. Here the same test has to turn red on another
device, or the one that ``ON_CUDA`` names where the CPU's has another name. An area is a manifest, ``scaler`` say;
with names only those defects of it are planted. ``REPORT`` becomes a JSON list, with an entry for each defect.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.planted.defect import Defect
from tests.planted.on_device import VARIABLE
from tests.planting import loaded, run, where
from tests.project import ROOT

_FORMULAS = "suites/gradients/test_formulas.py::test_operator_is_its_formula"
#: What notices a defect on CUDA, where it is not the same test, in its file or with a file of its own; None where CUDA
#: has no such defect.
ON_CUDA: dict[str, str | None] = {
    "bf16_support_is_claimed": None,  # it is true there
    "cat_promotes_to_the_first": "suites/rules/test_registered.py::test_no_operator_is_new_or_gone[cuda-bf16]",
    # Float16 is CUDA's default, so it shows where another is asked for.
    "checkpoint_recomputes_in_default_dtype": (
        "test_recomputation_runs_in_the_region_of_forward[cuda-fp16-other dtype-non-reentrant]"
    ),
    "cpu_query_answers_wrong": None,
    "cross_entropy_low_precision": None,  # CUDA has no rule for it, and rounds: expected to fail
    "cumprod_in_low_precision": None,  # autocast makes it float32 there, and torch before 2.13 is not asked
    "disable_acts_on_every_device": "test_disabling_one_device_leaves_the_other_on[cuda-bf16-cpu]",
    "distilled_targets_get_no_gradient": None,  # the references of every device are computed on a CPU
    "dtype_argument_ignored": "test_the_innermost_region_decides[cuda-fp16-on.other]",
    "encoder_fast_path_ignores_its_mask": None,  # the encoder leaves its fast path where autocast is on for CUDA
    # What products of float32 are on CUDA is a default of torch, and not what they always are.
    "float32_products_in_ten_bits": "test_the_defaults[cuda-fp32]",
    "hidden_states_get_half_their_gradient": None,  # the references of every device are computed on a CPU
    "layer_norm_on_several_threads_goes_back_rounded": None,  # threads are the CPU's
    "log_softmax_into_float32_is_rounded": None,  # autocast makes it float32 there, asked or not
    # Atomics of the dtype make a large error of long sums, too: that rows are lost, the formula tells.
    "index_add_loses_duplicates": f"{_FORMULAS}[cuda-bf16-index_add]",
    "old_decorators_take_the_default_dtype": None,  # it is torch.cpu's
    "low_products_overlook_half": None,  # the CPU's kernel
    "places_of_pixels_are_low": None,  # autocast interpolates in float32 there
    "products_on_several_threads_add_up_low": None,  # threads are the CPU's
    "reflected_pads_go_back_once": None,  # the references of every device are computed on a CPU
    "rules_of_extensions_on_every_device": "test_a_rule_of_an_extension_is_its_devices[cuda-bf16]",
    "second_derivatives_of_silu_miss_a_term": None,  # the references of every device are computed on a CPU
    "sharded_scaler_never_grows": None,  # it has an update of its own on a CPU, and torch's operator elsewhere
    "stft_falls_through": None,  # CUDA has no rule for it
    "unscale_waits_for_the_host": "test_waits_on_cuda[cuda-bf16-",
}
_AT_ONCE = 2
_TIMEOUT = 120.0


def failing_on(defect: Defect, device: str) -> str | None:
    there = defect.failing.replace("[cpu-", f"[{device}-")
    return ON_CUDA.get(defect.module, there) if device == "cuda" else there


def where_on(defect: Defect, failing: str) -> list[str]:
    return [failing] if "::" in failing else where(defect, failing)


def planted(defect: Defect, device: str) -> dict[str, object]:
    """Whether the test that is meant for the defect turned red there."""
    failing = failing_on(defect, device)
    if failing is None:
        return {"defect": defect.module, "noticed": None}
    given = [*loaded(defect), "-p", "no:xdist", "-q", "-rfE", "--tb=line"]
    dtype = "fp16" if f"[{device}-fp16" in failing else "bf16"
    given += [f"--amp-device={device}", f"--amp-dtype={dtype}", "--amp-speed=off", *where_on(defect, failing)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, VARIABLE: device}
        status, text = run(given, Path(folder) / "output", timeout=_TIMEOUT, environment=environment)
    red = [line for line in text.splitlines() if re.match("FAILED |ERROR ", line)]
    noticed = status == pytest.ExitCode.TESTS_FAILED and any(failing in line for line in red)
    found: dict[str, object] = {
        "defect": defect.module,
        "test": failing,
        "noticed": noticed,
        "red": len(red),
        "seconds": round(time.monotonic() - started, 1),
    }
    return found if noticed else {**found, "output": text[-3000:]}


def main(arguments: list[str]) -> int:
    """Write the report; 1 where a defect went unnoticed."""
    device, report, *wanted = arguments
    areas = [each for each in wanted if (ROOT / "tests" / "planted" / f"manifest_{each}.py").exists()]
    defects: list[Defect] = []
    for area in areas:
        manifest = importlib.import_module(f"tests.planted.manifest_{area}")
        defects += getattr(manifest, f"{area.upper()}_ON_{device.upper()}", ())
        defects += getattr(manifest, area.upper())
    names = set(wanted) - set(areas)
    defects = [defect for defect in defects if not names or defect.module in names]
    found: list[dict[str, object]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in pool.map(lambda defect: planted(defect, device), defects):
            found.append(each)
            Path(report).write_text(json.dumps(found, indent=1), encoding="utf-8")
    unnoticed = [each["defect"] for each in found if each["noticed"] is False]
    sys.stdout.write(f"{len(found)} planted, unnoticed: {unnoticed or 'none'}\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
