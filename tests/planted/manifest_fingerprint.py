"""Planted defects in what comes out of operators and modules, in or out of autocast's lists."""

from __future__ import annotations

from tests.planted.defect import Defect

DTYPES = "suites/fingerprint/test_dtypes.py"
_TEST = "test_every_entry_returns_the_known_dtypes"
_LIST = "test_no_entry_is_new_or_gone"


def _defect(module: str, breaks: str, group: str, *, device: str = "cpu", dtype: str = "bf16") -> Defect:
    target = f"{device.replace(':', '-')}-{dtype}-{group}"
    arguments = (f"{DTYPES}::{_TEST}[{target}]", f"--amp-device={device}", f"--amp-dtype={dtype}")
    return Defect(module, breaks, arguments, f"{_TEST}[{target}]")


FINGERPRINT = (
    _defect("cov_in_float32_under_autocast", "the dtype of a composite", "a-c"),
    _defect("logaddexp_asks_autocast", "an operator outside of every list", "i-m"),
    _defect("group_norm_module_low_precision", "the dtype of a module", "modules.a-k", device="fake:cuda"),
    _defect("slogdet_mixed_dtypes", "results of one dtype", "linalg"),
    _defect("softsign_promotes", "the dtype of low inputs without autocast", "functional.n-z"),
    _defect("linear_cross_entropy_is_low_for_some", "the dtypes of some samples, which others have", "functional.l-m"),
    _defect("var_mean_mean_low_precision", "the dtype of the second result", "s-z"),
    _defect("erfinv_low_in_fp16", "dtypes in fp16 alone", "d-h", dtype="fp16"),
    _defect("hypot_low_on_cuda", "dtypes on CUDA alone", "d-h", device="fake:cuda"),
    _defect("nanmean_ends_its_process", "an operator that takes its process with it", "n-r"),
    Defect("addr_left_torchs_tests", "an operator that is gone", (f"{DTYPES}::{_LIST}",), f"{_LIST}[cpu-bf16]"),
    Defect("torchs_tests_know_another", "an operator that is new", (f"{DTYPES}::{_LIST}",), f"{_LIST}[cpu-bf16]"),
)

#: Planted on a GPU, by tests/planted_on_device.py.
FINGERPRINT_ON_CUDA = (_defect("trace_is_low_on_cuda", "what a real device gives otherwise", "s-z", device="cuda"),)
