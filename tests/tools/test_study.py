"""``python -m tools.study``: selected parts, resuming, out of memory as a result, tables and plots."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_amp.devices import Device, find_device
from tests.project import ROOT
from tools.study import grid, report, results, transformer
from tools.study.__main__ import main
from tools.study.grid import Cell, Choice

TINY = {"small": (1, 16, 2), "medium": (2, 16, 2)}


_shares = transformer._shares


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use sizes that a CPU measures at once, without torch.profiler, which takes seconds to start, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(transformer, "_shares", lambda *_: {"products": 0.5, "attention": 0.1})
    monkeypatch.setattr(transformer, "SIZES", TINY)
    monkeypatch.setattr(transformer, "VOCABULARY", 50)
    monkeypatch.setattr(transformer, "BUDGET", 0.01)
    yield
    torch.set_num_threads(threads)


def study(folder: Path, *more: str) -> int:
    chosen = ("--device=cpu", "--sizes=small", "--contexts=8,16", "--precisions=fp32,tf32,bf16", "--attentions=sdpa")
    return main(["--to", str(folder), *chosen, *more])


def test_grid_has_all_combinations() -> None:
    assert len(list(Choice().cells())) == 5 * 5 * 2 * 3 * 4
    only = Choice(sizes=["small"], contexts=[128], attentions=["sdpa"], modes=["step"], warm_ups=["own", "fp32"])
    # Float32 needs no comparison of warm-ups with itself.
    assert [str(cell).partition("step")[0] for cell in only.cells()].count("small, 128, bf16, sdpa, ") == 2
    assert len(list(only.cells())) == 6


@pytest.mark.parametrize("mode", grid.MODES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cell_is_measured(mode: str, precision: str) -> None:
    actual = transformer.measure(Cell("small", 8, 2, precision, "math", mode), find_device("cpu"))
    assert actual["step_time"] > 0
    assert actual["device_time"] is None, "a CPU has no graphs"
    assert len(actual["first_calls"]) == 3
    assert actual["parameters"] > 16 * 50


def test_shares_of_time_are_measured() -> None:
    device = find_device("cpu")
    actual = _shares(transformer._Work(Cell("small", 8, 2, "fp32", "sdpa", "forward"), device), device)
    assert 0 < actual["products"] < 1
    assert 0 < actual["attention"] < 1


def test_peak_excludes_memory_allocated_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        counts, allocated, peaks = True, 300, (1000, 5000)

        def empty(self) -> None:
            """Do nothing, since no memory is reserved."""

    monkeypatch.setattr(transformer, "Allocator", lambda _device: Counting())
    actual = transformer.measure(Cell("small", 8, 2, "fp32", "sdpa", "forward"), find_device("cpu"))
    assert actual["peak"] == 700


def test_out_of_memory_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(transformer, "_Work", full)
    assert transformer.measure(Cell("small", 8, 2, "bf16", "math", "step"), find_device("cpu")) == {
        "out_of_memory": True
    }


def test_command_resumes_an_interrupted_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Cell] = []
    original = transformer.measure

    def counted(cell: Cell, device: Device) -> dict[str, object]:
        measured.append(cell)
        return original(cell, device)

    monkeypatch.setattr(transformer, "measure", counted)
    assert study(tmp_path, "--seconds=0") == 1
    first = len(measured)
    assert first < 18
    assert "cells are left; the same command goes on" in capsys.readouterr().err
    # Simulates a power failure while a line was written.
    path = tmp_path / "transformer.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + '{"cell": {"size": "sm', encoding="utf-8")
    assert study(tmp_path) == 0
    assert len(measured) == len(set(measured)) == 2 * 3 * 3
    assert "18/18" in capsys.readouterr().err
    assert study(tmp_path) == 0
    assert len(measured) == 18
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len([json.loads(line) for line in lines]) == 19
    page = (tmp_path / "transformer.md").read_text(encoding="utf-8")
    assert "## forward+backward, sdpa attention, batch 4" in page
    assert page.count("| small | 16 |") == 3
    assert "In doubt" not in page
    assert "**small, step**: bf16 " in page
    has_plots = importlib.util.find_spec("matplotlib") is not None
    assert (tmp_path / "transformer-speedup-step.svg").exists() == has_plots


def test_results_of_another_machine_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "transformer.jsonl").write_text('{"torch": "1.0"}\n', encoding="utf-8")
    assert study(tmp_path) == 1
    assert "results of another machine or torch (torch, " in capsys.readouterr().err
    (tmp_path / "transformer.jsonl").write_text("", encoding="utf-8")
    assert study(tmp_path) == 1
    assert "no results of a study" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--sizes=huge", "--precisions=fp8", "--contexts=0", "--contexts=many", "--batches=-1", "--modes="]
)
def test_unknown_options_are_refused(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        study(tmp_path, option)
    name, _, value = option.partition("=")
    assert f"argument {name}: {value!r}; expected " in capsys.readouterr().err


@pytest.mark.parametrize("device", ["xpu", "nonsense"])
def test_device_that_does_not_compute_is_refused_in_one_line(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        study(tmp_path, f"--device={device}")
    assert ended.value.code == 2
    assert f"error: argument --device: {device} does not compute here: " in capsys.readouterr().err


def results_file(path: Path, rows: dict[Cell, dict[str, object]]) -> results.Results:
    actual = results.Results(path, {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11.0"})
    for cell, row in rows.items():
        actual.add(cell, row)
    return results.read(path)


def test_page_has_ratios_of_the_results(tmp_path: Path) -> None:
    def row(ms: float, peak: float) -> dict[str, object]:
        return {"step_time": 2 * ms / 1e3, "device_time": ms / 1e3, "peak": peak, "products": 0.8, "first_calls": [1.0]}

    rows: dict[Cell, dict[str, object]] = {}
    for attention, factor in (("sdpa", 1.0), ("math", 1.5)):
        for precision, ms in (("fp32", 80.0), ("tf32", 20.0), ("bf16", 10.0), ("fp16", 9.0)):
            cell = Cell("small", 1024, 4, precision, attention, "forward+backward")
            rows[cell] = row(factor * ms, 10e9 if precision == "fp32" else 7e9)
    rows[Cell("xl", 512, 4, "fp32", "sdpa", "step")] = row(80.0, 70e9)
    rows[Cell("xl", 1024, 4, "fp32", "sdpa", "step")] = {"out_of_memory": True}
    page = report.as_markdown(results_file(tmp_path / "it.jsonl", rows))
    assert (
        "**small, forward+backward**: bf16 2.00 over TF32 in device time, 2.00 over TF32 in step time, 8.00 over fp32 "
        "in device time; products are 80% of fp32's time: they alone, at the 14.8 of the card's peak rates, give 3.9."
    ) in page
    assert "**TF32 end to end** over IEEE fp32, forward and backward: 4.00." in page
    assert "**fp16 over bf16**, batch 4, forward and backward in device time: 1.11." in page
    assert "**What fused attention adds** in bf16, forward and backward in device time: 1.50." in page
    assert "**Peak memory**, forward+backward: bf16 takes 0.70 times what fp32 does." in page
    assert "**xl in fp32**, step, sdpa attention, batch 4: the largest context that fits is 512." in page
    times = "| small | 1024 | 80.00 | 20.00 | 10.00 | 9.00 |"
    assert f"{times} 8.00 | 2.00 | 2.22 | 4.00 | 2.00 | 80% | 80% | 7.00 | 0.70 |" in page
    assert "| xl | 1024 | OOM |" in page


def test_doubtful_measurement_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retain and mark results measured beside another process on the GPU, and replace them in the next run."""
    monkeypatch.setattr(transformer, "doubts_of", lambda _: ("1 other process on this GPU",))
    chosen = ("--contexts=8", "--modes=forward", "--precisions=bf16")
    assert study(tmp_path, *chosen) == 0
    page = tmp_path / "transformer.md"
    assert "**In doubt** are 1 measurements, such as by 1 other process on this GPU" in page.read_text("utf-8")
    monkeypatch.setattr(transformer, "doubts_of", lambda _: ())
    assert study(tmp_path, *chosen) == 0
    assert "In doubt" not in page.read_text("utf-8")
    capsys.readouterr()
    assert study(tmp_path, *chosen) == 0
    assert "0/0" in capsys.readouterr().err


def test_page_of_the_docs_is_up_to_date() -> None:
    """Compare with the page that ``python -m tools.study --to docs/lab/transformers --only-report`` writes."""
    folder = ROOT / "docs" / "lab" / "transformers"
    actual = results.read(folder / "transformer.jsonl")
    assert not any(result.get("doubts") for result in actual.found.values())
    modes = ("forward-backward", "step")
    pictures = [f"transformer-{what}-{mode}.svg" for mode in modes for what in ("speedup", "memory")]
    shown = [picture for picture in pictures if (folder / picture).is_file()]
    assert shown
    assert (folder / "transformer.md").read_text(encoding="utf-8") == report.as_markdown(actual, shown)
