"""Records as a format for other tools: the public API reads them, and an example makes a table and a picture."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import pytest_amp
from pytest_amp.record import Kind, Observation, Record, read_record, write_record
from tests.project import ROOT
from tests.record.test_schema import needs_jsonschema, problems

KEY = "speed/cuda/bf16/transformer/device/speedup"


def run(program: str, folder: Path, *arguments: str) -> str:
    """Return the output of Python without torch, numpy and pytest."""
    absent = "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'pytest']))\n"
    done = subprocess.run(
        [sys.executable, "-c", absent + program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_reader_is_imported_on_first_access(tmp_path: Path) -> None:
    program = "import pytest_amp; before = set(sys.modules); from pytest_amp import read_record\n"
    program += "print('pytest_amp.record' in before, 'typing' in before, read_record.__module__)"
    assert run(program, tmp_path).split() == ["False", "False", "pytest_amp.record.file"]
    assert pytest_amp.read_record is read_record
    with pytest.raises(AttributeError, match="module 'pytest_amp' has no attribute 'nothing'"):
        _ = pytest_amp.nothing  # type: ignore[attr-defined]


def test_example_writes_a_table_and_a_picture_of_ten_records(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    for number in range(10):
        observations = (
            Observation(KEY, Kind.RATIO, 2.0 + number / 10, "times", 1.5),
            Observation("rules/cpu/bf16/a<b", Kind.RULE, "fp32"),
        )
        record = Record(observations, {"torch": f"2.{number}.0", "date": f"2026-11-{number + 10}T00:00:00+00:00"})
        ending = "json.gz" if number % 2 else "json"
        write_record(record, folder / f"{number}.{ending}", replace=False)
    program = f"import runpy; runpy.run_path({str(ROOT / 'examples' / 'history.py')!r}, run_name='__main__')"
    run(program, tmp_path, "records", "speed/*")
    rows = list(csv.DictReader((tmp_path / "history.csv").open(encoding="utf-8")))
    assert len(rows) == 20
    history = [(row["torch"], float(row["value"]), row["unit"]) for row in rows if row["key"] == KEY]
    assert history == [(f"2.{number}.0", 2.0 + number / 10, "times") for number in range(10)]
    picture = ET.parse(tmp_path / "history.svg").getroot()  # noqa: S314  # a new file of this test
    (line,) = picture.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == 10
    assert points == sorted(points)
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True)


@needs_jsonschema
@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "lab" / "examples").glob("*.json.gz")), ids=lambda path: path.name
)
def test_records_of_the_docs_match_the_schema(path: Path) -> None:
    data = json.loads(gzip.decompress(path.read_bytes()))
    assert problems(data) == []
    data["observations"][0]["rows"][0][0] = "no key"
    assert len(problems(data)) == 1
