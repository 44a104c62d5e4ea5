"""Known faults of torch: a file next to the families lists the tests that are expected to fail, and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_amp.data_files.releases import release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.known import machine
from pytest_amp.known.expected import FILE, exceptions_of, expected_failure, fault_of, faults_beside
from pytest_amp.known.rows import Known, read_known
from tests.project import Project

NOW = release_of(torch.__version__)
EARLIER, THIS, LATER = (f"{NOW[0]}.{NOW[1] + step}" for step in (-1, 0, 1))
FAMILY = 'from pytest_amp.families import Family\nFAMILY = Family("own")\n'
TESTS = """
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_sizes(amp, size):
    SIZES

def test_alone(amp):
    ALONE
"""
KEY = "own/*/test_it::"


def row(key: str, *columns: str) -> str:
    """Return a row of the file."""
    lines = (f'key = "{KEY}{key}"', 'reason = "why"', 'report = "pytorch/pytorch#3"', *columns)
    return "\n".join(["[[known]]", *lines, ""])


def run(project: Project, *rows: str, sizes: str = "assert size == 1", alone: str = "assert False") -> pytest.RunResult:
    """Run the tests: by default one size passes, and the other tests fail."""
    project.file("checks/__init__.py", "")
    project.file("checks/own/__init__.py", FAMILY)
    project.file("checks/own/test_it.py", TESTS.replace("SIZES", sizes).replace("ALONE", alone))
    project.file(f"checks/{FILE}", "\n".join(rows))
    return project.here("checks", "--amp-device=cpu", "--amp-dtype=bf16,fp16")


BOTH = (row("test_sizes[2]"), row("test_alone"))


def test_fault_is_expected(project: Project) -> None:
    result = run(project, *BOTH)
    result.assert_outcomes(passed=2, xfailed=4)
    assert result.ret == 0


def test_failure_without_a_row_is_red(project: Project) -> None:
    run(project, row("test_alone")).assert_outcomes(passed=2, failed=2, xfailed=2)


def test_fault_that_is_gone_is_red_and_named(project: Project) -> None:
    result = run(project, *BOTH, alone="pass")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*fixed upstream: *pytorch/pytorch#3: why passes on cpu-bf16; end its row in known.toml*"]
    )


def test_key_without_parameters_covers_none(project: Project) -> None:
    run(project, row("test_sizes"), row("test_alone")).assert_outcomes(passed=2, failed=2, xfailed=2)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((f'until = "{THIS}"',), 2),
        ((f'until = "{EARLIER}"',), 0),
        ((f'since = "{THIS}"',), 2),
        ((f'since = "{LATER}"',), 0),
        ((f'since = "{EARLIER}"', f'until = "{LATER}"'), 2),
        (('devices = ["cpu", "cuda"]',), 2),
        (('devices = "cuda"',), 0),
        (('dtypes = ["fp16"]',), 1),
        (('dtypes = ["fp16"]', 'devices = ["cuda"]'), 0),
        (('machine = "packs_16_bit_additions"',), 0),
        (('raises = "AssertionError"',), 2),
        (('raises = ["AmpFailure", "torch.OutOfMemoryError"]',), 0),
    ],
    ids=str,
)
def test_columns_limit_a_fault(project: Project, columns: tuple[str, ...], expected: int) -> None:
    result = run(project, row("test_sizes[2]"), row("test_alone", *columns))
    result.assert_outcomes(passed=2, xfailed=2 + expected, failed=2 - expected)


def test_last_row_in_force_decides(project: Project) -> None:
    """End a fault in one dtype; a row of a later release changes nothing."""
    ended = row("test_alone", 'dtypes = ["bf16"]', f'until = "{EARLIER}"')
    coming = row("test_alone", f'since = "{LATER}"')
    run(project, *BOTH, ended, coming).assert_outcomes(passed=2, xfailed=3, failed=1)


def fault(**columns: object) -> Known:
    return Known(keys=("own/*/test_it::test_it",), reason="why", report="a/b#1", **columns)  # type: ignore[arg-type]


def on_cuda(*rows: Known, dtype: str = "bf16") -> Known | None:
    """Return the fault of a test on CUDA, which this machine may lack."""
    return fault_of(f"own/cuda/{dtype}/test_it::test_it", rows, (2, 13), device_type="cuda", precision=dtype)


def test_fault_is_limited_to_its_devices_and_dtypes() -> None:
    everywhere, there, low = fault(), fault(devices=("cuda",)), fault(devices=("cuda",), dtypes=("fp16",))
    assert on_cuda(everywhere) is everywhere
    assert on_cuda(there) is there
    assert on_cuda(low) is None
    assert on_cuda(low, dtype="fp16") is low
    assert on_cuda(fault(devices=("cpu",)), fault(devices=("fake-cuda",))) is None
    assert on_cuda(everywhere, fault(devices=("cuda",), until="2.12")) is None
    assert on_cuda(everywhere, fault(devices=("cpu",), until="2.12")) is everywhere


def test_fault_is_limited_to_machines_with_a_property(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = fault(machine="packs_16_bit_additions")
    for capability, version, expected in (((9, 0), None, packed), ((8, 0), None, None), ((9, 0), "6.4", None)):
        machine.has_property.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda actual=capability: actual)
        monkeypatch.setattr(torch.version, "hip", version)
        assert on_cuda(packed) is expected
    machine.has_property.cache_clear()


@pytest.fixture
def _untried_lstm() -> Iterator[None]:
    machine._runs_lstm.cache_clear()
    yield
    machine._runs_lstm.cache_clear()


@pytest.mark.usefixtures("_untried_lstm")
@pytest.mark.parametrize(
    ("error", "lacks"),
    [(None, False), ("could not create a primitive descriptor for the LSTM", True), ("mixed dtypes", False)],
)
def test_an_lstm_lacks_a_kernel_if_onednn_creates_no_primitive(
    monkeypatch: pytest.MonkeyPatch, error: str | None, *, lacks: bool
) -> None:
    def forward(*_arguments: object) -> None:
        if error is not None:
            raise RuntimeError(error)

    monkeypatch.setattr("pytest_amp.torch_private.cpu_has_onednn_kernels", lambda _precision: True)
    monkeypatch.setattr(torch.nn.LSTM, "forward", forward)
    before = torch.get_rng_state()
    assert machine.lacks_lstm_kernel("cpu", "fp16") is lacks
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("_untried_lstm")
def test_lstm_is_tried_on_the_cpu_whatever_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def forward(_layer: torch.nn.LSTM, batch: torch.Tensor) -> None:
        devices.append(batch.device.type)

    monkeypatch.setattr("pytest_amp.torch_private.cpu_has_onednn_kernels", lambda _precision: True)
    monkeypatch.setattr(torch.nn.LSTM, "forward", forward)
    with torch.device("meta"):
        assert not machine.lacks_lstm_kernel("cpu", "fp16")
    assert devices == ["cpu"]


@pytest.mark.parametrize("kernels", [False, True])
def test_machine_property_depends_on_kernels_for_a_low_dtype(monkeypatch: pytest.MonkeyPatch, *, kernels: bool) -> None:
    monkeypatch.setattr("pytest_amp.torch_private.cpu_has_onednn_kernels", lambda _precision: kernels)
    monkeypatch.setattr(machine, "_runs_lstm", lambda _precision, **_mode: kernels)
    assert machine.lacks_lstm_kernel("cpu", "fp16") is not kernels
    assert machine.adds_up_low_convolutions("cpu", "fp16") is not kernels
    for name in ("lacks_lstm_kernel", "adds_up_low_convolutions"):
        assert not machine.MACHINES[name]("cuda", "fp16")
    assert not machine.lacks_lstm_kernel("cpu", "fp32")


def test_exceptions_of_a_fault_are_found_by_name() -> None:
    raises = ("AmpFailure", "KeyError", "pytest.fail.Exception", "torch.OutOfMemoryError")
    assert exceptions_of(fault(raises=raises)) == (AmpFailure, KeyError, pytest.fail.Exception, torch.OutOfMemoryError)
    assert expected_failure(fault(raises=("KeyError",))).kwargs == {
        "strict": True,
        "reason": "a/b#1: why",
        "raises": (KeyError,),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[known]\n", "not TOML"),
        ("[[known]]\nkey = 'a/*'\n", "reason is None; expected text in each of key, reason, report"),
        (row("x", 'until = "soon"'), "soon: no release; expected one such as '2.14'"),
        (row("x", 'since = "2.9"', 'until = "2.8"'), "since 2.9 is later than until 2.8"),
        (row("x", 'sinse = "2.9"'), "sinse is '2.9'"),
        (row("x", "devices = []"), "devices is []; expected a list of names"),
        (row("x", 'devices = ["fake:cuda"]'), "devices names 'fake:cuda'; expected devices as in keys: cpu, cuda"),
        (row("x", 'dtypes = ["half"]'), "dtypes names 'half'; expected fp32, tf32, bf16, fp16"),
        (
            row("x", 'raises = ["int"]'),
            "raises names 'int'; expected AmpFailure, a built-in exception, or one with its",
        ),
        (row("x", 'machine = "toaster"'), "machine is 'toaster'; expected lacks_lstm_kernel, "),
        (row("x") * 2, f"the key '{KEY}x' is listed twice"),
        ("[other]\n", "'other'; expected tables [[known]]"),
        ('[[fault]]\nkey = "a"\n', "'fault'; expected tables [[known]]"),
    ],
)
def test_malformed_file_is_a_usage_error_in_one_line(project: Project, text: str, says: str) -> None:
    result = run(project, text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.startswith("ERROR")]
    assert FILE in line
    assert says in line


def test_exception_that_does_not_exist_is_a_usage_error(project: Project) -> None:
    result = run(project, row("test_alone", 'raises = "torch.NoSuchError"'))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: {KEY}test_alone: raises names 'torch.NoSuchError', which is not an exception*"]
    )


def test_family_without_a_file_has_no_faults(tmp_path: Path) -> None:
    assert faults_beside(tmp_path / "own", "own") == ()


def test_releases_are_printed_as_a_range(tmp_path: Path) -> None:
    file = tmp_path / FILE
    columns = ((), ('since = "2.7"',), ('until = "2.8"',), ('since = "2.7"', 'until = "2.8"'), ('until = "2.7"',))
    file.write_text("\n".join(row(str(number), *column) for number, column in enumerate(columns)), encoding="utf-8")
    rows = read_known(file)
    assert [row.releases for row in rows] == ["all", "from 2.7 on", "up to 2.8", "2.7 to 2.8", "up to 2.7"]
    assert rows[1].name == f"{KEY}1 (from 2.7 on)"
