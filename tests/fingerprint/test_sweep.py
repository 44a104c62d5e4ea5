"""A crash of the process loses one sample, which is reported; the other samples and operators are called."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from pytest_amp.child_process import ExaminationFailed
from pytest_amp.devices import find_device
from pytest_amp.fingerprint.compare import NOT_HERE
from pytest_amp.fingerprint.sweep import FingerprintSweep, NoEntries

CPU = find_device("cpu")
CUDA = find_device("fake:cuda")


@pytest.fixture(scope="module")
def sweep() -> Iterator[FingerprintSweep]:
    result = FingerprintSweep(modules=["tests.fingerprint.planted_entries"], path=sys.path)
    yield result
    result.close()


def test_entries_have_unique_names(sweep: FingerprintSweep) -> None:
    names = sweep.entries(CPU)
    assert len(names) == len(set(names)) > 700
    assert {"addmm", "linalg.pinv.singular", "nn.functional.rms_norm", "nn.Linear", "planted_killed"} <= set(names)
    assert sweep.entries(CUDA) is names


def test_fingerprint_shows_rules(sweep: FingerprintSweep) -> None:
    assert sweep.fingerprint("addmm", CPU, "bfloat16") == "fp32 low | low low"
    assert sweep.fingerprint("exp", CUDA, "float16") == "fp32 low | fp32 fp32"
    assert sweep.fingerprint("nn.functional.binary_cross_entropy", CUDA, "float16") == "fp32 low | banned banned"
    assert sweep.fingerprint("nn.Linear", CUDA, "bfloat16") == "fp32 low | low low"


def test_fingerprint_shows_rules_inside_composite_operators(sweep: FingerprintSweep) -> None:
    assert sweep.fingerprint("cov", CPU, "bfloat16") == "fp32 low | low low"
    assert sweep.fingerprint("cov", CUDA, "bfloat16") == "fp32 low | low low"
    assert sweep.fingerprint("linalg.pinv", CPU, "bfloat16").endswith("| low error")
    assert "low,fp32,fp32" in sweep.fingerprint("pca_lowrank", CPU, "bfloat16")


@pytest.mark.parametrize(
    ("name", "how"), [("planted_killed", "died of SIGSEGV"), ("planted_exits", "ended with status 7")]
)
def test_sample_that_ends_the_process_is_the_only_loss(sweep: FingerprintSweep, name: str, how: str) -> None:
    del sweep.losses[:]
    assert sweep.fingerprint(name, CPU, "bfloat16") == "fp32 low | = x1; fp32 low | low low x1; lost x1"
    (loss,) = sweep.losses
    assert loss.startswith(f"{name} on cpu in bfloat16, sample 1: it {how}")
    assert sweep.fingerprint("addmm", CPU, "bfloat16") == "fp32 low | low low"


def test_sample_that_hangs_is_the_only_loss() -> None:
    sweep = FingerprintSweep(modules=["tests.fingerprint.planted_entries"], path=sys.path, timeout=60)
    sweep.entries(CPU)
    (process,) = sweep._processes.values()
    process.timeout = 15  # time for a new process to start
    assert sweep.fingerprint("planted_hangs", CPU, "float16") == "fp32 low | = x1; fp32 low | low low x1; lost x1"
    (loss,) = sweep.losses
    assert loss == "planted_hangs on cpu in float16, sample 1: it did not answer within 15 s and was killed"
    sweep.close()


def test_device_error_on_a_fake_device_ends_no_process(sweep: FingerprintSweep) -> None:
    assert sweep.fingerprint("planted_raises", CUDA, "bfloat16") == "fp32 low | = x1; fp32 low | low low x1"


def test_missing_library_of_the_machine_is_not_a_fingerprint(sweep: FingerprintSweep) -> None:
    for name in ("planted_without_magma", "planted_without_compiler"):
        assert sweep.fingerprint(name, CPU, "bfloat16") == NOT_HERE
    assert sweep.fingerprint("planted_without_kernel", CPU, "bfloat16") != NOT_HERE


def test_unknown_entry_is_refused(sweep: FingerprintSweep) -> None:
    with pytest.raises(ExaminationFailed, match="tests no nothing"):
        sweep.fingerprint("nothing", CPU, "bfloat16")


@pytest.mark.parametrize(
    ("stand_in", "says"),
    [("changed_entries", r"op_db as it was \(AttributeError"), ("no_operators", r"no usable .*invocations.op_db ")],
)
def test_changed_or_missing_entries_of_torch_are_reported(stand_in: str, says: str) -> None:
    sweep = FingerprintSweep(modules=[f"tests.fingerprint.{stand_in}"], path=sys.path)
    with pytest.raises(NoEntries, match=says):
        sweep.entries(CPU)
    sweep.close()


def test_entries_are_the_same_without_expecttest() -> None:
    pytest.importorskip("expecttest")
    with_it, without = (
        FingerprintSweep(modules=modules, path=sys.path) for modules in ([], ["tests.fingerprint.no_expecttest"])
    )
    assert without.entries(CPU) == with_it.entries(CPU)
    for entry in ("softmax", "linalg.pinv", "nn.Linear"):
        assert without.fingerprint(entry, CPU, "bfloat16") == with_it.fingerprint(entry, CPU, "bfloat16")
    with_it.close()
    without.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device that can be poisoned")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["planted_asserts", "planted_illegal_address"])
def test_poisoned_device_loses_one_sample(sweep: FingerprintSweep, name: str, dtype: str) -> None:
    """Observe the samples and entries before and after it, in a new process."""
    cuda = find_device("cuda")
    assert sweep.fingerprint("addmm", cuda, dtype) == "fp32 low | low low"
    del sweep.losses[:]
    assert sweep.fingerprint(name, cuda, dtype) == "fp32 low | = x1; fp32 low | low low x1; lost x1"
    (loss,) = sweep.losses
    assert loss.startswith(f"{name} on cuda in {dtype}, sample 1: it poisoned the device: "), loss
    assert "CUDA error" in loss
    assert sweep.fingerprint("addmm", cuda, dtype) == "fp32 low | low low"
    assert torch.ones(2, device="cuda").sum().item() == 2, "the parent's own context is poisoned"
