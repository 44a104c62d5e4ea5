"""Example reports of the docs are up to date with the records in their folder, and contain the known changes."""

from __future__ import annotations

import re

import pytest

from pytest_amp.record import Record, Verdict, difference, read_record
from tests.docs.examples import FOLDER, RELEASES, pages


def record(release: str) -> Record:
    return read_record(FOLDER / f"torch-{release}.json.gz")


def test_example_pages_match_their_records() -> None:
    """After a change of a report, run ``python -m tests.docs.examples`` and review the changes."""
    assert [path.name for path, text in pages() if path.read_text(encoding="utf-8") != text] == []


@pytest.mark.parametrize("release", sorted({release for pair in RELEASES for release in pair}))
def test_example_record_is_complete_and_of_its_release(release: str) -> None:
    actual = record(release)
    assert str(actual.provenance["torch"]).startswith(f"{release}.")
    again = difference(actual, actual)
    assert (again.observations, again.same > 10_000) == ((), True)
    assert not re.search(r"/(tmp|home|root)\b", str(actual.provenance))


def names(old: str, new: str, verdict: Verdict) -> set[str]:
    return {observation.key for observation in difference(record(old), record(new)).of(verdict)}


def test_examples_have_the_known_changes() -> None:
    """Torch 2.14 added one operator and removed two; one operator has a rule since 2.12."""
    new, gone = (names("2.13", "2.14", verdict) for verdict in (Verdict.NEW, Verdict.GONE))
    assert {"rules/cpu/bf16/aten::linalg_matrix_sqrth", "rules/fake-cuda/fp16/aten::linalg_matrix_sqrth"} <= new
    assert {f"rules/cpu/{dtype}/aten::{name}" for name in ("cholesky", "qr") for dtype in ("bf16", "fp16")} <= gone
    since = {f"rules/fake-{device}/bf16/aten::rms_norm" for device in ("cuda", "xpu")}
    assert since <= names("2.6", "2.13", Verdict.NEW) | names("2.6", "2.13", Verdict.CHANGED)
