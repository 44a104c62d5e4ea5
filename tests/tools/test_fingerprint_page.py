"""The page has the tables of the fingerprint file."""

from __future__ import annotations

from pytest_amp.fingerprint.data import load, parse
from tests.project import ROOT
from tools.fingerprints.page import BEGIN, END, as_markdown


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
