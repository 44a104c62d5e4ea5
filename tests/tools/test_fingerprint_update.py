"""The command that updates the file of fingerprints and the page, and prints the changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from pytest_amp.devices import FAKE_TYPES, Device, find_device
from pytest_amp.devices.accelerator import CudaDevice
from pytest_amp.fingerprint.data import load, parse, short_release
from tests.project import ROOT
from tools.fingerprints import update
from tools.fingerprints.page import BEGIN, END, as_markdown

LOW, FULL, SAME = "fp32 low | low low", "fp32 low | fp32 fp32", "fp32 low | ="
NOW = short_release(torch.__version__)


class Swept:
    """Stand-in for a sweep, with fixed answers."""

    answers: ClassVar[dict[str, str]] = {}
    others: ClassVar[dict[str, dict[str, str]]] = {}

    def __init__(self, **_: object) -> None:
        self.losses = ["conv2d on cpu in bfloat16, sample 3: it died of SIGSEGV"] if "lost" in str(self.answers) else []

    def entries(self, _device: Device) -> tuple[str, ...]:
        return tuple(self.answers)

    def fingerprint(self, name: str, device: Device, _dtype: str) -> str:
        return self.others.get(device.name, {}).get(name, self.answers[name])

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "FingerprintSweep", Swept)
    monkeypatch.setattr(Swept, "answers", {"addmm": LOW, "cov": LOW})
    monkeypatch.setattr(Swept, "others", {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fingerprints.txt"


def test_missing_file_is_created(file: Path) -> None:
    assert update.update(file, ["cpu"]) == [
        "cpu bf16: 2 entries, of which nothing was known",
        "cpu fp16: 2 entries, of which nothing was known",
    ]
    assert file.read_text(encoding="utf-8").endswith(f"\nmeasured cpu {NOW}\naddmm: {LOW}\ncov: {LOW}\n")


def test_second_update_changes_nothing(file: Path) -> None:
    update.update(file, ["cpu", "fake:cuda"])
    before = file.read_text(encoding="utf-8")
    assert update.update(file, ["cpu", "fake:cuda"]) == []
    assert file.read_text(encoding="utf-8") == before


def test_changed_entries_are_listed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update.update(file, ["cpu"])
    monkeypatch.setattr(Swept, "answers", {"addmm": SAME, "conv2d": f"{LOW}; lost"})
    assert update.update(file, ["cpu"])[:3] == [
        f"cpu bf16 changed addmm: {LOW} -> {SAME}",
        f"cpu bf16 new conv2d: no such entry -> {LOW}; lost",
        f"cpu bf16 gone cov: {LOW} -> no such entry",
    ]
    assert update.update(file, ["cpu"]) == ["lost: conv2d on cpu in bfloat16, sample 3: it died of SIGSEGV"]


@pytest.mark.parametrize("other", ["2.0", "9.9"])
def test_other_release_is_added(file: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    update.update(file, ["cpu"])
    monkeypatch.setattr(torch, "__version__", f"{other}.0+cpu")
    monkeypatch.setattr(Swept, "answers", {"addmm": LOW, "cov": SAME})
    assert update.update(file, ["cpu"]) == [f"cpu {dtype} changed cov: {LOW} -> {SAME}" for dtype in ("bf16", "fp16")]
    known = load(file)
    assert set(known.measured["cpu"]) == {NOW, other}
    assert known.expected("cpu", "bf16", f"{NOW}.0") == {"addmm": {LOW}, "cov": {LOW}}
    assert known.expected("cpu", "bf16", f"{other}.0") == {"addmm": {LOW}, "cov": {SAME}}


def test_check_changes_no_file_and_ends_with_1(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update.main(["cpu"], path=file) == 0
    before = file.read_text(encoding="utf-8")
    assert update.main(["cpu"], path=file, check=True) == 0
    monkeypatch.setattr(Swept, "answers", {"addmm": LOW, "cov": SAME})
    assert update.main(["cpu"], path=file, check=True) == 1
    assert file.read_text(encoding="utf-8") == before
    assert f"cpu bf16 changed cov: {LOW} -> {SAME}\n" in capsys.readouterr().out


def test_entries_of_a_real_device_that_differ_are_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "find_device", lambda name: CudaDevice() if name == "cuda" else find_device(name))
    monkeypatch.setattr(Swept, "others", {"cuda": {"cov": FULL}})
    update.update(file, ["fake:cuda"])
    assert update.update(file, ["cuda"]) == [f"cuda {dtype} changed cov: {LOW} -> {FULL}" for dtype in ("bf16", "fp16")]
    assert file.read_text(encoding="utf-8").endswith(f"\naddmm: {LOW}\ncov: {LOW}\ncov real-cuda: {FULL}\n")
    assert update.update(file, ["cuda"]) == []


def test_entry_unknown_on_the_fake_device_is_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "find_device", lambda name: CudaDevice() if name == "cuda" else find_device(name))
    monkeypatch.setattr(Swept, "answers", {"geqrf": "fp32 ? | ="})
    monkeypatch.setattr(Swept, "others", {"cuda": {"geqrf": "fp32 error | ="}})
    update.update(file, ["fake:cuda"])
    assert update.update(file, ["cuda"]) == []
    assert file.read_text(encoding="utf-8").endswith("\ngeqrf: fp32 ? | =\ngeqrf real-cuda: fp32 error | =\n")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("complex64 bcomplex32 | =", "complex64 ? | ="),
        (f"{LOW} x2; {SAME} x1", f"{LOW} x2; fp32 ? | = x1"),
        (LOW, "not: raises RuntimeError with autocast off"),
        (LOW, "not: needs another build or machine"),
    ],
)
def test_lost_guard_is_reported_and_the_file_unchanged(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], before: str, now: str
) -> None:
    """Refuse to replace a result of another build or machine by one that is unavailable here."""
    monkeypatch.setattr(Swept, "answers", {"addmm": LOW, "polar": before})
    update.update(file, ["cpu"])
    text = file.read_text(encoding="utf-8")
    monkeypatch.setattr(Swept, "answers", {"addmm": SAME, "polar": now})
    with pytest.raises(update.GuardsLost, match="guard lost: cpu bf16 polar: "):
        update.update(file, ["cpu"])
    assert update.main(["cpu"], path=file) == 1
    out = capsys.readouterr().out
    assert f"guard lost: cpu fp16 polar: {before} -> {now}\n" in out
    assert "--allow-lost writes it all the same" in out
    assert file.read_text(encoding="utf-8") == text
    assert update.main(["cpu"], path=file, lost=update.Lost.FORGET) == 0
    assert f"guard lost: cpu fp16 polar: {before} -> {now}\n" in capsys.readouterr().out
    assert file.read_text(encoding="utf-8") != text


def test_retained_guard_is_written_for_the_new_release(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retain known results, and write other changes."""
    known, now = "complex64 bcomplex32 | =", "complex64 ? | ="
    monkeypatch.setattr(torch, "__version__", "9.8.0")
    monkeypatch.setattr(Swept, "answers", {"addmm": LOW, "polar": known})
    update.update(file, ["cpu"])
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    monkeypatch.setattr(Swept, "answers", {"addmm": SAME, "polar": now})
    lines = update.update(file, ["cpu"], lost=update.Lost.KEEP)
    assert [line for line in lines if "guard" in line] == [
        f"guard kept: cpu {dtype} polar: {known} -> {now}" for dtype in ("bf16", "fp16")
    ]
    assert load(file).expected("cpu", "bf16", "9.9.0") == {"addmm": {SAME}, "polar": {known}}


def test_first_observed_dtype_is_no_lost_guard(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Swept, "answers", {"polar": "complex64 ? | ="})
    update.update(file, ["cpu"])
    monkeypatch.setattr(Swept, "answers", {"polar": "complex64 complex32 | ="})
    assert update.update(file, ["cpu"])[0] == (
        "cpu bf16 could not be observed before polar: complex64 ? | = -> complex64 complex32 | ="
    )


def test_selected_entries_are_updated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update.update(file, ["cpu"])
    monkeypatch.setattr(Swept, "answers", {"addmm": SAME, "cov": SAME})
    assert update.update(file, ["cpu"], entries=["add*"]) == [
        f"cpu {dtype} changed addmm: {LOW} -> {SAME}" for dtype in ("bf16", "fp16")
    ]
    assert file.read_text(encoding="utf-8").endswith(f"\naddmm: {SAME}\ncov: {LOW}\n")


@pytest.mark.parametrize("name", ["xpu", "nonsense", "fake:nonsense"])
def test_device_that_does_not_compute_is_refused_in_one_line(name: str) -> None:
    """Run the command as a user does: status 2, neither a difference nor a success."""
    command = [sys.executable, "-m", "tools.fingerprints", "--check", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"python -m tools.fingerprints: {name} does not compute here: ")
    assert done.stderr.count("\n") == 1


def test_default_devices_are_the_cpu_and_all_fakes() -> None:
    assert ("cpu", *(f"fake:{device_type}" for device_type in FAKE_TYPES)) == update.DEVICES


def test_fingerprint_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "reference" / "fingerprint.md").read_text(encoding="utf-8")
    actual = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert actual == as_markdown(load()), "make it with: python -m tools.fingerprints --page"


def test_tables_have_counts_and_reasons() -> None:
    known = parse(
        "measured cpu 2.13\nmeasured cuda 2.11 2.13\nmeasured real-cuda 2.11\n"
        "mm: fp32 low | low low\nnn.Linear: fp32 low | low low\nnn.functional.elu: fp32 low | =\n"
        "istft cpu: fp32 fp32 | =\nistft cuda: not: needs a real device\n"
        "istft real-cuda: fp32 fp32 | =  # fakes have no values\n"
    )
    lines = as_markdown(known).splitlines()
    assert "| cpu | 2.13 | 3 | 1 |  |" in lines
    assert "| cuda | 2.13 | 2 | 1 | 1 needs a real device |" in lines
    assert "| real-cuda | 2.11 | 3 | 1 |  |" in lines
    assert lines[-1] == "| fakes have no values | 1: `istft` |"
