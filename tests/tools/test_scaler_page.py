"""docs/reference/scaler.md agrees with the model, the suite and its keywords."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_amp.amp import Amp
from pytest_amp.record import Kind, Observation, Record, Value, read_record, write_record
from pytest_amp.scaler import Iteration, TraceStep
from pytest_amp.scaler.optimizers import VARIANTS, candidates, optimizers_on
from pytest_amp.scaler.transitions import CALLS
from tests.project import ROOT
from tools.pages.part import replaced
from tools.pages.scaler import HELD, main, optimizers, transitions

PAGE = ROOT / "docs" / "reference" / "scaler.md"
TEXT = PAGE.read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "check-a-scaler.md").read_text(encoding="utf-8")


def observed(*checked: str, device: str = "cpu") -> Record:
    value = Observation(f"scaler/{device}/bf16/optimizers", Kind.STATE, [*checked], test="it")
    devices: dict[str, Value] = {"cuda": {"gpu": "A card"}}
    provenance: dict[str, Value] = {"torch": torch.__version__, "date": "2026-11-28T00:00:00", "devices": devices}
    ran = {f"{device}-bf16 scaler": tuple(f"test_optimizers::{test}" for test in HELD)}
    return Record((value,), provenance, ran=ran)


def test_page_has_the_transition_table() -> None:
    assert transitions() in TEXT, "run python -m tools.pages.scaler docs/reference/scaler.md"
    assert all(f"| `{call}` |" in transitions() for call in CALLS)


def test_page_has_the_optimizers_of_this_torch() -> None:
    part = TEXT.partition("<!-- optimizers on cpu -->")[2].partition("<!-- end -->")[0]
    version = re.search(r"torch (\S+), ", part)
    assert version is not None
    if version[1] != torch.__version__:
        pytest.skip(f"the table is of torch {version[1]}")
    ((_, table),) = optimizers(observed(*optimizers_on(torch.device("cpu"))))
    assert table.partition("\n\n")[2] in part
    assert part.count("\n| ") == len(VARIANTS) + 1


def test_guide_has_keywords_and_fields() -> None:
    names = [*inspect.signature(Amp.check_scaler).parameters, *TraceStep.__dataclass_fields__]
    expected = set(names) - {"self", "case"}
    assert [name for name in sorted(expected) if f"`{name}`" not in GUIDE] == []
    assert all(name in GUIDE for name in ("model", "batch", "optimizer", "scaler", "index"))
    assert {"model", "batch", "optimizer", "scaler", "index"} <= Iteration.__dataclass_fields__.keys()


def test_table_shows_the_state_of_each_optimizer() -> None:
    record = observed("Adam, loop", "SGD momentum, fused", "Adam, fused capturable", "Muon")
    ((device, table),) = optimizers(record)
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in table.splitlines() if row.startswith("| ")}
    assert device == "cpu"
    assert (
        rows["Adam"] == "| Adam | checked | not available | not available | not available | not available | checked |"
    )
    assert "upstream xfail, LibreYOLO/libreyolo#771" in rows["SGD momentum"]
    assert rows["Muon"].startswith("| Muon | checked (one implementation) |  |")
    assert "not available" in rows["SparseAdam"]


def test_table_names_its_card() -> None:
    ((device, table),) = optimizers(observed("Adam, loop", device="cuda"))
    assert device == "cuda"
    assert table.startswith(f"torch {torch.__version__}, A card, 2026-11-28:\n")


def test_incomplete_record_is_refused() -> None:
    record = replace(observed("Adam, loop"), ran={"cpu-bf16 scaler": ("test_optimizers::test_implementations_agree",)})
    with pytest.raises(ValueError, match="the record has not all of test_clean_steps_are_the_unscaled_ones, "):
        list(optimizers(record))


def test_table_of_cuda_matches_its_record() -> None:
    record = read_record(Path(__file__).with_name("optimizers_on_cuda.json"))
    tables = dict(optimizers(record))
    assert tables.keys() == {"cuda"}
    assert tables["cuda"] in TEXT
    assert "not run" not in tables["cuda"]


def test_command_rewrites_the_page(tmp_path: Path) -> None:
    page, record = tmp_path / "page.md", tmp_path / "run.json"
    page.write_text(
        "before\n<!-- transitions -->\nold\n<!-- end -->\n<!-- optimizers on cpu -->\nold\n<!-- end -->\nafter\n"
    )
    write_record(observed("Adam, loop"), record, replace=False)
    main([str(page), str(record)])
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert transitions() in text
    assert "| Adam | checked |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_page_without_the_part_is_refused() -> None:
    with pytest.raises(ValueError, match="no part between <!-- transitions --> and <!-- end -->"):
        replaced("nothing", "transitions", "")


def test_unavailable_optimizer_has_a_reason() -> None:
    why = candidates(torch.device("cpu"))["Adam, capturable"]
    assert why is not None
    assert "supported devices" in why
