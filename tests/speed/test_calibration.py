"""``pytest-amp calibrate``: from new processes to floors, and the cases in which nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_amp import cli, floors
from pytest_amp.record import SCHEMA
from pytest_amp.speed.calibration import CalibrationError, rows, session_of


def times(ratio: float, *, doubts: list[str] | None = None, ceiling: float | None = None, kind: str = "device") -> str:
    facts: dict[str, Any] = {
        "work": "decoder",
        "device": "NVIDIA H100 80GB HBM3",
        "precision": "bf16",
        "over": "tf32",
        "kind": kind,
        "ratio": ratio,
        "ceiling": ceiling,
        "doubts": doubts or [],
    }
    machine = {"torch": "2.11.0", "devices": {"cuda": {"gpu": "H100", "cuda": "13.0", "cudnn": "9", "driver": "580"}}}
    benchmarks = [{"extra_info": {"amp": {"decoder over tf32": facts}}}, {"extra_info": {}}]
    return json.dumps({"machine_info": {"amp": machine}, "benchmarks": benchmarks})


@pytest.mark.parametrize(("kind", "share"), [("device", 0.95), ("step", 0.80)])
def test_floor_is_a_share_of_the_median(kind: str, share: float) -> None:
    result, left_out = rows([session_of(times(ratio, kind=kind)) for ratio in (2.0, 2.02, 1.9)], least=3)
    (row,) = result
    assert (row.median, row.floor, row.sessions, left_out) == (2.0, round(share * 2.0, 4), 3, [])
    assert (row.torch, row.cuda, row.cudnn, row.driver) == ("2.11.0", "13.0", "9", "580")
    assert 0.02 < row.spread < 0.04


def test_floor_does_not_exceed_the_ceiling_of_the_card() -> None:
    result, _ = rows([session_of(times(2.4, ceiling=2.0))] * 3, least=3)
    assert result[0].floor == 2.0


def test_doubtful_session_is_not_counted() -> None:
    sessions = [session_of(times(2.0, doubts=doubts)) for doubts in ([], [], ["another process is on this GPU"])]
    result, left_out = rows(sessions, least=3)
    assert result == []
    assert left_out[0].endswith("sound in 2 of 3 processes (another process is on this GPU)")


def record(ratio: float, *, judged: bool = True) -> str:
    place = "speed/cuda/bf16/decoder/over-tf32/device"
    speedup = {"kind": "ratio", "rows": [[f"{place}/speedup", ratio]]} | ({"better": "higher"} if judged else {})
    time = {"kind": "seconds", "rows": [[f"{place}/float32-time", 0.1]]}
    other = {"kind": "rule", "rows": [["rules/cuda/bf16/aten::softmax.int", "fp32"]]}
    device = {"gpu": "NVIDIA H100 80GB HBM3", "cuda": "13.0", "cudnn": "9", "driver": "580"}
    provenance = {"torch": "2.11.0", "devices": {"cuda": device}}
    data = {"schema": SCHEMA, "complete": True, "provenance": provenance, "observations": [speedup, time, other]}
    return json.dumps(data)


def test_records_are_accepted_as_sessions() -> None:
    result, _ = rows([session_of(record(ratio)) for ratio in (2.0, 2.02, 1.9)], least=3)
    (row,) = result
    assert row.key == ("NVIDIA H100 80GB HBM3", "tf32", "bf16", "decoder", "device")
    assert (row.median, row.sessions, row.torch, row.driver) == (2.0, 3, "2.11.0", "580")
    assert rows([session_of(record(2.0, judged=False))] * 3, least=3)[0] == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmarks": [{"extra_info": {"amp": {"x": {}}}}]}'])
def test_file_without_times_is_refused(text: str) -> None:
    with pytest.raises(CalibrationError, match="no file of pytest-benchmark, and no record"):
        session_of(text)


def calibrate(tmp_path: Path, ratio: float, *more: str) -> int:
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(times(ratio), encoding="utf-8")
    return cli.main(["calibrate", "--from", *map(str, files), "--to", str(tmp_path / "floors.json"), *more])


def test_calibrate_command_lowers_floors_only_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "floors.json"
    assert calibrate(tmp_path, 2.0) == 0
    assert [row.floor for row in floors.read(path)] == [1.9]
    assert "decoder  device  bf16   tf32   2.000   0.00%   1.900" in capsys.readouterr().out
    assert calibrate(tmp_path, 1.8) == 1
    assert "1 floor would fall" in capsys.readouterr().err
    assert [row.floor for row in floors.read(path)] == [1.9]
    assert calibrate(tmp_path, 1.8, "--reason", "driver 581 is slower") == 0
    (row,) = floors.read(path)
    assert (row.floor, row.reason) == (1.71, "driver 581 is slower")


def test_file_of_another_owner_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of one command can be offered; its floors are as strict as measured ones."""
    path = tmp_path / "floors.json"
    assert calibrate(tmp_path, 2.0) == 0
    assert "attach the file to an issue or a pull request of pytest-amp" in capsys.readouterr().out
    merged = tmp_path / "merged.json"
    other = floors.Row("NVIDIA L4", "tf32", "bf16", "decoder", "device", 1.5, 1.6, 0.0, 5, "2", "1", "9", "5", "today")
    floors.write(merged, [other])
    assert cli.main(["calibrate", "--from", str(path), "--to", str(merged)]) == 0
    assert capsys.readouterr().out.endswith(f"1 floor merged into {merged}\n")
    assert {row.gpu: row.floor for row in floors.read(merged)} == {"NVIDIA L4": 1.5, "NVIDIA H100 80GB HBM3": 1.9}
    assert calibrate(tmp_path, 1.8, "--reason", "another driver") == 0
    assert cli.main(["calibrate", "--from", str(path), "--to", str(merged)]) == 1
    assert "1 floor would fall" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sessions", "floor", "says"),
    [(1, 1.5, "expected 3 processes or more, and at most 0.95 of the median"), (5, 1.59, "a floor of 1.59, a median")],
)
def test_implausible_offered_floor_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sessions: int, floor: float, says: str
) -> None:
    path, merged = tmp_path / "offered.json", tmp_path / "merged.json"
    row = floors.Row(
        "NVIDIA L4", "tf32", "bf16", "decoder", "device", floor, 1.6, 0.0, sessions, "2", "1", "9", "5", "today"
    )
    floors.write(path, [row])
    assert cli.main(["calibrate", "--from", str(path), "--to", str(merged)]) == 1
    assert says in capsys.readouterr().err
    assert not merged.exists()
    measured = tmp_path / "measured.json"
    measured.write_text(times(2.0), encoding="utf-8")
    assert cli.main(["calibrate", "--from", str(measured), str(path), "--to", str(merged)]) == 1
    assert "expected files of one kind" in capsys.readouterr().err


def test_too_few_sessions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["calibrate", "--sessions", "2"])
    assert "argument --sessions: 2; expected 3 or more" in capsys.readouterr().err
    file = tmp_path / "one.json"
    file.write_text(times(2.0), encoding="utf-8")
    assert cli.main(["calibrate", "--from", str(file), "--to", str(tmp_path / "floors.json")]) == 1
    assert not (tmp_path / "floors.json").exists()


def test_installed_package_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse before anything is measured; tests/packaging tests it with a wheel."""
    monkeypatch.setattr("pytest_amp.cli.calibrate.is_a_wheel", lambda: True)
    with pytest.raises(SystemExit) as ended:
        cli.main(["calibrate"])
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert line.endswith(
        "error: argument --to: nothing; expected a file of yours, for pytest --amp-floors=FILE: the package's own one "
        "goes with its next upgrade"
    )
    assert calibrate(tmp_path, 2.0) == 0
    assert floors.read(tmp_path / "floors.json")


def test_missing_folder_is_reported_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nowhere" / "floors.json"
    assert cli.main(["calibrate", "--to", str(path)]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"pytest-amp: {path}: its folder is not there\n")


def test_rows_of_a_concurrent_calibration_are_retained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration takes minutes: the content of the file at the time of writing counts, not at the start."""
    path = tmp_path / "floors.json"
    other = floors.Row(
        "another card", "tf32", "bf16", "decoder", "device", 1.0, 1.1, 0.0, 3, "2", "1", "9", "5", "today"
    )

    def at_last(*arguments: Any, **options: Any) -> Any:
        floors.write(path, [other])
        return rows(*arguments, **options)

    monkeypatch.setattr("pytest_amp.speed.calibration.rows", at_last)
    assert calibrate(tmp_path, 2.0) == 0
    assert {row.gpu for row in floors.read(path)} == {"another card", "NVIDIA H100 80GB HBM3"}


def test_calibration_runs_new_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run everything on a CPU, which is not a card and only reports its times."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import torch\n"
        "def test_it(amp):\n"
        "    def work():\n"
        "        a = torch.randn(64, 64)\n"
        "        return lambda: a @ a\n"
        '    amp.check_speedup(work, versus="fp32", floor=0, seconds=0.5)\n',
        encoding="utf-8",
    )
    path = tmp_path / "floors.json"
    status = cli.main(["calibrate", str(test), "--sessions=3", "--device=cpu", "--dtype=bf16", "--to", str(path)])
    out, err = capsys.readouterr()
    if "left out" not in out:  # a busy machine may leave a process in doubt
        assert status == 0, out + err
        (row,) = floors.read(path)
        assert (row.work, row.kind, row.dtype, row.sessions) == ("work", "step", "bf16", 3)
    assert out.count("process ") >= 3


def test_run_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nowhere.py"
    assert cli.main(["calibrate", str(missing), "--device=cpu", "--to", str(tmp_path / "floors.json")]) == 1
    assert "no times" in capsys.readouterr().err
