"""--amp-dtype."""

from __future__ import annotations

import pytest

from pytest_amp.devices.probe import current_accelerator
from tests.project import SIMULATED, WITHOUT_FP16, Project, ids, red, refused

TEST = """
def test_it(amp):
    assert amp.dtype == amp.precision.dtype
"""


def collected(project: Project, *arguments: str) -> list[str]:
    result = project.here("--collect-only", "-q", "--amp-device=cpu", *arguments)
    assert result.ret == 0, result.outlines
    return ids(result)


def test_option_accepts_auto_and_all_and_lists(project: Project) -> None:
    project.write(test_it=TEST)
    both = ["cpu-bf16", "cpu-fp16"]
    assert collected(project) == collected(project, "--amp-dtype=auto") == both
    assert collected(project, "--amp-dtype=all") == collected(project, "--amp-dtype=bf16, fp16,bf16") == both
    assert collected(project, "--amp-dtype=fp16", "--amp-dtype=bf16") == both[::-1]
    assert collected(project, "--amp-dtype=fp16,auto") == both[::-1]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("fp16", "fp16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("torch.float16", "fp16"),
    ],
)
def test_names_of_torch_are_accepted(project: Project, name: str, known: str) -> None:
    project.write(test_it=f"def test_it(amp_dtype):\n    assert str(amp_dtype) == 'torch.{_full(known)}'")
    project.here("--amp-device=cpu", f"--amp-dtype={name}").assert_outcomes(passed=1)


def _full(name: str) -> str:
    return {"bf16": "bfloat16", "fp16": "float16"}[name]


@pytest.mark.parametrize("option", ["nope", "BF16", "fp32", "float32", "tf32", "fp8", "float64", "bf16;fp16"])
def test_unknown_name_is_refused(project: Project, option: str) -> None:
    line = refused(project.here(f"--amp-dtype=bf16,{option}"))
    assert line.startswith(f"--amp-dtype (command line): {option!r} is not a dtype; expected auto, all, bf16, fp16, ")


def test_empty_name_is_refused(project: Project) -> None:
    assert refused(project.here("--amp-dtype=")).startswith("--amp-dtype (command line): '' has an empty dtype")


def test_dtype_that_the_device_lacks_is_refused(project: Project) -> None:
    project.write(conftest=SIMULATED + WITHOUT_FP16, test_it=TEST)
    options = ("--amp-device=simulated", "--amp-dtype=bf16,fp16")
    line = refused(project.here(*options))
    assert line == (
        "--amp-dtype (command line): 'fp16' does not compute on simulated "
        "(RuntimeError: no fp16 in this silicon); expected here: bf16"
    )
    # A worker determines it, the controller prints it, once.
    assert refused(project.apart(*options, "-n", "2")) == line


def test_auto_omits_a_dtype_that_fails_in_the_probe(project: Project) -> None:
    project.write(conftest=SIMULATED + WITHOUT_FP16, test_it=TEST)
    assert collected(project, "--amp-device=simulated") == ["cpu-bf16", "cpu-fp16", "simulated-bf16"]


def test_missing_dtype_is_skipped_if_allowed(project: Project) -> None:
    wide = '@pytest.mark.amp(dtypes=["fp32", "bf16", "fp16"])\ndef test_wide(amp):\n    pass'
    project.write(conftest=SIMULATED + WITHOUT_FP16, test_it=f"import pytest\n\n\n{wide}")
    result = project.here(
        "--amp-device=simulated", "--amp-dtype=fp16,bf16", "--amp-allow-missing=dtype", "-v", "-rs", "--strict-markers"
    )
    # fp32 runs although one of the dtypes is missing.
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*test_wide[[]simulated-fp16[]] SKIPPED*", "SKIPPED * 'fp16' does not compute on *"])
    assert (result.ret, red(result)) == (0, [])


def test_dtype_is_refused_if_the_probe_returns_another(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_amp.run.resolution.current_accelerator", lambda: None)
    always_bf16 = """
    def autocast(self, dtype, *, enabled=True, cache_enabled=True):
        return torch.autocast("cpu", torch.bfloat16)
"""
    project.write(conftest=SIMULATED + always_bf16, test_it=TEST)
    line = refused(project.here("--amp-device=simulated", "--amp-dtype=fp16"))
    assert "(a matmul under autocast returned torch.bfloat16)" in line


def test_default_device_of_this_machine_computes(project: Project) -> None:
    """Run on the accelerator that ``auto`` detects, or on the CPU."""
    device = current_accelerator() or "cpu"
    project.write(test_it="def test_it(amp_autocast, amp_device, amp_dtype):\n    import torch\n    "
                  "x = torch.ones(8, 8, device=amp_device)\n    with amp_autocast():\n        "
                  "assert (x @ x).dtype == amp_dtype")  # fmt: skip
    result = project.here("-v")
    assert f"test_it[{device}-" in result.stdout.str()
    assert result.ret == 0
