"""docs/reference/scaler.md agrees with the model and the optimizers, and the guide with its keywords."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from pytest_amp.amp import Amp
from pytest_amp.scaler import Iteration, TraceStep
from pytest_amp.scaler.optimizers import IMPLEMENTATIONS, VARIANTS, candidates, optimizers_on
from pytest_amp.scaler.transitions import CALLS, STATES, TABLE
from tests.project import ROOT

TEXT = (ROOT / "docs" / "reference" / "scaler.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "check-a-scaler.md").read_text(encoding="utf-8")


def test_page_has_the_transition_table() -> None:
    """Compare row by row: the missing rows of a failure are those to be written into the page."""
    rows = [
        f"| `{call}` | " + " | ".join(re.sub("(?<=Error): (.+)", r": “\1”", str(TABLE[call][s])) for s in STATES) + " |"
        for call in CALLS
    ]
    assert [row for row in rows if row not in TEXT] == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_page_has_a_row_for_each_optimizer(device: str) -> None:
    version, table = optimizers_of_the_page(device)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version)
    assert list(table) == list(VARIANTS)


def test_page_has_the_optimizers_of_this_torch() -> None:
    version, table = optimizers_of_the_page("cpu")
    if version != torch.__version__:
        pytest.skip(f"the table is of torch {version}")
    checked = optimizers_on(torch.device("cpu"))
    for name, cells in table.items():
        if cells[0] == "checked (one implementation)":
            assert name in checked
        else:
            expected = [f"{name}, {implementation}" in checked for implementation in IMPLEMENTATIONS]
            assert [cell.startswith("checked") for cell in cells] == expected, name


def optimizers_of_the_page(device: str) -> tuple[str, dict[str, list[str]]]:
    """Return the release of torch, and the cells of each optimizer."""
    part = TEXT.partition(f"<!-- optimizers on {device} -->")[2].partition("<!-- end -->")[0]
    version = part.partition("torch ")[2].partition(",")[0]
    rows = [row.strip("| ").split(" | ") for row in part.splitlines() if row.startswith("| ")]
    return version, {name: cells for name, *cells in rows[1:]}


def test_guide_has_keywords_and_fields() -> None:
    names = [*inspect.signature(Amp.check_scaler).parameters, *TraceStep.__dataclass_fields__]
    expected = set(names) - {"self", "case"}
    assert [name for name in sorted(expected) if f"`{name}`" not in GUIDE] == []
    assert all(name in GUIDE for name in ("model", "batch", "optimizer", "scaler", "index"))
    assert {"model", "batch", "optimizer", "scaler", "index"} <= Iteration.__dataclass_fields__.keys()


def test_unavailable_optimizer_has_a_reason() -> None:
    why = candidates(torch.device("cpu"))["Adam, capturable"]
    assert why is not None
    assert "supported devices" in why
