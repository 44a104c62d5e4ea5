"""Header and summary in the terminal."""

from __future__ import annotations

from importlib import metadata

import pytest

from tests.project import ON_CPU, SIMULATED, WITHOUT_FP16, Project, summary

BOTH = "unexplained: 2 tests on cpu in bf16, fp16"
MIXED = """
import pytest


@pytest.mark.parametrize("n", range(3))
def test_many(amp, n):
    amp.observe(f"e/{n}", 0.1 * n, kind="error", allowed=0.4, unit="relative")


def test_failing(amp):
    assert False


@pytest.mark.parametrize("n", range(2))
def test_skipping(amp, n):
    pytest.skip("not here")
"""


def test_summary_counts_outcomes_by_target_and_family(project: Project) -> None:
    project.write(test_it=MIXED)
    project.file("rules/__init__.py", "from pytest_amp.families import Family\n\nFAMILY = Family('rules')\n")
    project.file("rules/test_rules.py", "def test_it(amp):\n    pass\n\n\ndef test_at_end(amp):\n    import torch\n"
                 "    torch.set_grad_enabled(False)\n")  # fmt: skip
    result = project.here("--amp-device=cpu")
    assert summary(result) == [
        "ran       cpu-bf16  project 3 + 1 failed + 2 skipped, rules 2 + 1 error",
        "ran       cpu-fp16  project 3 + 1 failed + 2 skipped, rules 2 + 1 error",
        "skipped   4 (not here)",
        "closest   project: 50% of what is allowed, project/cpu/fp16/e/2",
        f"cause     {BOTH}: the test left torch's state changed (restored now): grad mode: True became False",
        f"cause     {BOTH}: assert False",
    ]


def test_run_without_mixed_precision_has_no_summary(project: Project) -> None:
    project.write(test_it="def test_it():\n    pass")
    result = project.here("-v")
    assert summary(result) == []
    assert not [line for line in result.outlines if line.startswith("amp:")]


def test_collect_only_has_no_summary(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    assert "= amp =" not in project.here(*ON_CPU, "--collect-only").stdout.str()


def test_long_lists_of_reasons_and_keys_are_cut(project: Project) -> None:
    text = "import pytest\n\n\n@pytest.mark.parametrize('n', range(25))\ndef test_it(amp, n):\n    {}\n"
    project.write(test_it=text.format("amp.observe(f'{n:02}', 1, kind='count')"))
    assert project.here(*ON_CPU, "--amp-record=old.json").ret == 0
    project.write(test_it=text.format("amp.observe(f'{n:02}', 2, kind='count')"))
    lines = summary(project.here(*ON_CPU, "--amp-baseline=old.json"))
    assert len([line for line in lines if line.startswith("changed ")]) == 20
    assert "          and 5 more" in lines
    project.write(test_it=text.format("pytest.skip(f'reason {n}')"))
    lines = summary(project.here(*ON_CPU))
    assert len([line for line in lines if line.startswith("skipped ")]) == 20
    assert "          and 5 more reasons" in lines


def test_header_lists_devices_and_their_dtypes(project: Project) -> None:
    project.write(conftest=SIMULATED + WITHOUT_FP16, test_it="def test_it(amp):\n    pass")
    import torch

    result = project.here("--amp-device=cpu,simulated", "--amp-dtype=bf16,fp16", "--amp-allow-missing=dtype")
    capability = torch.backends.cpu.get_cpu_capability()
    result.stdout.fnmatch_lines([f"amp: cpu: * {capability}; bf16, fp16", "amp: simulated: simulated; bf16"])
    result.stdout.fnmatch_lines(["amp: simulated-fp16: --amp-dtype (command line): 'fp16' does not compute on *"])


def test_header_has_the_version_of_torch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    project.write(test_it="def test_it(amp):\n    pass")
    # The version of an installed package is read without an import: a wheel may omit its CUDA version.
    installed = metadata.version("torch")
    assert torch.__version__.startswith(installed)
    project.here(*ON_CPU).stdout.fnmatch_lines([f"amp: torch {installed}, device cpu *"])

    version = metadata.version

    def gone(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError
        return version(name)

    monkeypatch.setattr(metadata, "version", gone)  # a torch that was built but not installed
    result = project.here(*ON_CPU, "--amp-record=new.json")
    assert result.ret == 0
    assert project.record("new.json")["provenance"]["torch"] == torch.__version__


def test_run_without_a_terminal_reporter_is_red(project: Project) -> None:
    project.write(test_it="import pytest\n\n\ndef test_it(amp):\n    pytest.skip('x')")
    assert project.here(*ON_CPU, "-p", "no:terminal").ret == 1
