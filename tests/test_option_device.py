"""--amp-device."""

from __future__ import annotations

import pytest

from pytest_amp.devices import FAKE_TYPES
from pytest_amp.devices.fake import FakeDevice
from pytest_amp.devices.probe import current_accelerator, probe
from tests.project import SIMULATED, WITHOUT_FP16, Project, ids, red, refused

TEST = """
def test_it(amp):
    assert amp.device.torch_device.type in ("cpu", "cuda", "xpu", "mps", "mtia")
"""
FAKE = """
import pytest


@pytest.mark.amp(fake=True)
def test_it(amp):
    assert amp.device.type in ("cpu", "cuda", "xpu", "mps", "mtia")
"""


def collected(project: Project, *arguments: str) -> list[str]:
    result = project.here("--collect-only", "-q", "--amp-dtype=bf16", *arguments)
    assert result.ret == 0, result.outlines
    return ids(result)


def test_auto_is_the_working_accelerator_or_the_cpu(project: Project) -> None:
    project.write(test_it=TEST)
    expected = [f"{current_accelerator() or 'cpu'}-bf16"]
    assert collected(project) == collected(project, "--amp-device=auto") == expected


@pytest.mark.parametrize(("option", "expected"), [("auto", ["simulated"]), ("all", ["cpu", "simulated"])])
def test_auto_and_all_select_an_accelerator(
    project: Project, monkeypatch: pytest.MonkeyPatch, option: str, expected: list[str]
) -> None:
    monkeypatch.setattr("pytest_amp.run.resolution.current_accelerator", lambda: "simulated")
    project.write(test_it=TEST, conftest=SIMULATED)
    assert collected(project, f"--amp-device={option}") == [f"{name}-bf16" for name in expected]


@pytest.mark.parametrize("option", ["auto", "all"])
def test_auto_and_all_omit_an_accelerator_with_wrong_values(
    project: Project, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("pytest_amp.run.resolution.current_accelerator", lambda: "simulated")
    wrong = """
    def autocast(self, dtype, *, enabled=True, cache_enabled=True):
        return torch.autocast("cpu", dtype, enabled=False)
"""
    project.write(test_it=TEST, conftest=SIMULATED + wrong)
    assert collected(project, f"--amp-device={option}") == ["cpu-bf16"]


def test_option_accepts_lists_and_repetition(project: Project) -> None:
    project.write(test_it=TEST, test_fake=FAKE)
    expected = ["cpu-bf16", "fake-xpu-bf16"]
    assert sorted(collected(project, "--amp-device=cpu, fake:xpu,cpu", "-k", "test_fake")) == expected
    repeated = ("--amp-device=cpu", "--amp-device=fake:xpu", "--amp-device=cpu")
    assert sorted(collected(project, *repeated, "-k", "test_fake")) == expected


def test_fake_devices_run_without_hardware(project: Project) -> None:
    project.write(test_it=TEST, test_fake=FAKE)
    fakes = [FakeDevice(device_type) for device_type in FAKE_TYPES]
    there = [device.name for device in fakes if probe(device).works]
    assert len(there) >= 3  # torch 2.6 has no autocast for mtia
    result = project.here(f"--amp-device={','.join(there)}", "--amp-dtype=bf16,fp16")
    result.assert_outcomes(passed=2 * len(there), deselected=2 * len(there))
    result.stdout.fnmatch_lines([f"not run   {2 * len(there)} (needs a real device)"])
    assert result.ret == 0


def test_run_with_only_deselected_tests_is_not_green(project: Project) -> None:
    project.write(test_it=TEST)
    assert project.here("--amp-device=fake:cuda").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("option", "workers", "named"), [("cuda", "0", "cuda"), ("cuda", "2", "cuda"), ("cpu,cuda:1", "0", "cuda:1")]
)
def test_absent_device_is_refused(project: Project, option: str, workers: str, named: str) -> None:
    project.write(test_it=TEST, test_plain="def test_plain(): pass")
    line = refused(project.apart(f"--amp-device={option}", "-n", workers))
    assert line.startswith(f"--amp-device (command line): {named!r} does not compute here (")
    assert line.endswith("); expected here: auto, cpu, fake:cuda, fake:xpu, fake:mps, fake:mtia")


def test_absent_device_is_skipped_if_allowed(project: Project) -> None:
    project.write(test_it=TEST)
    result = project.apart("--amp-device=cuda,cpu", "--amp-dtype=bf16", "--amp-allow-missing=device", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED * missing, as --amp-allow-missing allows: --amp-device (command line): 'cuda' *"]
    )
    assert result.ret == 0


@pytest.mark.parametrize(
    "option",
    ["nope", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "fake:cpu", "fake:cuda:0", "auto:1", "cuda;cpu"],
)
def test_unknown_name_is_refused(project: Project, option: str) -> None:
    line = refused(project.here(f"--amp-device=cpu,{option}"))
    assert line.startswith(f"--amp-device (command line): {option!r} is not a device; expected auto, all, cpu, cuda, ")
    assert line.endswith("fake:cuda, fake:xpu, fake:mps, fake:mtia")


@pytest.mark.parametrize("option", ["", ",", "cpu,", "cpu,,fake:cuda"])
def test_empty_name_is_refused(project: Project, option: str) -> None:
    assert refused(project.here(f"--amp-device={option}")).startswith(
        f"--amp-device (command line): {option!r} has an "
    )


@pytest.mark.parametrize("options", [("cuda:0,cuda:1",), ("cuda,cuda:1",), ("cuda:0", "cuda:1"), ("xpu:0,cpu,xpu:1",)])
def test_two_devices_of_a_type_are_refused(project: Project, options: tuple[str, ...]) -> None:
    line = refused(project.here(*[f"--amp-device={name}" for name in options]))
    assert "names two devices of type" in line
    assert line.endswith("expected one device of each type in a run")


def test_real_and_fake_device_of_one_type_are_accepted(project: Project) -> None:
    project.write(test_it="import pytest\n\n\n@pytest.mark.amp(fake=True)\ndef test_it(amp_device):\n    pass")
    names = collected(project, "--amp-device=cuda,fake:cuda", "--amp-allow-missing=device")
    assert sorted(names) == ["cuda-bf16", "fake-cuda-bf16"]


def test_device_with_an_index_is_refused_for_two_workers(project: Project) -> None:
    project.write(test_it=TEST)
    line = refused(project.here("--amp-device=cuda:1", "-n", "2"))
    assert line == (
        "--amp-device (command line): 'cuda:1' names one device for 2 workers; "
        "expected 'cuda', which gives each worker its own, or one worker"
    )
    assert "does not compute" in refused(project.apart("--amp-device=cuda:1", "-n", "1"))


def test_refusal_names_the_ini_file_of_a_device(project: Project) -> None:
    project.file("pytest.toml", '[pytest]\namp_device = "cuda"\n')
    project.write(test_it=TEST)
    assert refused(project.apart()).startswith("amp_device (pytest.toml): 'cuda' does not compute here (")
    assert refused(project.apart("-n", "2")).startswith("amp_device (pytest.toml): 'cuda' does not compute here (")


def test_registered_device_accepts_an_index(project: Project) -> None:
    project.write(conftest=SIMULATED, test_it="def test_it(amp):\n    assert amp.device.index == 3")
    result = project.here("--amp-device=simulated:3", "--amp-dtype=bf16", "-v")
    result.stdout.fnmatch_lines(["*test_it.py::test_it[[]simulated-bf16[]] PASSED*"])


def test_device_that_computes_in_no_dtype_is_refused(project: Project) -> None:
    broken = """
    def synchronize(self):
        raise RuntimeError("fell off the bus")
"""
    project.write(conftest=SIMULATED + broken, test_it=TEST)
    line = refused(project.here("--amp-device=simulated"))
    assert "'simulated' does not compute here (RuntimeError: fell off the bus); expected here: auto, cpu, " in line
    # The controller probes in a child process, which must know the device, too.
    assert "(RuntimeError: fell off the bus)" in refused(project.apart("--amp-device=simulated", "-n", "2"))


def test_registered_device_passes_under_workers(project: Project) -> None:
    project.write(conftest=SIMULATED + WITHOUT_FP16, test_it=TEST)
    result = project.apart("--amp-device=simulated", "-n", "2")
    result.assert_outcomes(passed=1)
    assert (result.ret, red(result)) == (0, [])
