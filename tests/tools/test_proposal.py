"""Changes of the data for the record of a release: rules, faults, reasons, the matrix, and one patch of it all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import release_of
from pytest_amp.known.expected import FILE, fault_of
from pytest_amp.known.rows import read_known
from pytest_amp.record import FIXED, Failure, Kind, Observation, Record
from pytest_amp.rules.spec import parse_spec
from tests.project import ROOT
from tests.tools.records import LAST, MENDED, NEXT, RAN, SHARED, observation, record
from tools.fingerprints.update import carried
from tools.release_support import pages
from tools.release_support.differences import CHANGES
from tools.release_support.notes import Note, documented, note_of, read_notes
from tools.release_support.patch import patch
from tools.release_support.proposal import SPEC, Observed, Proposal, human_list, propose
from tools.release_support.spec_rows import RuleChanges, edited, written


def proposal(checkout: Path, new: Record, *, old: Record | None = None, notes: Path | None = None) -> Proposal:
    before = record(f"{LAST}.0") if old is None else old
    log = ("guard kept: cpu bf16 polar: complex64 bcomplex32 | = -> complex64 ? | =",)
    return propose(checkout, Observed(before, new, carried(), log, notes))


def test_release_without_a_change_extends_the_data(checkout: Path) -> None:
    actual = proposal(checkout, record(f"{NEXT}.0+cpu"))
    spec = parse_spec(actual.files[SPEC])
    assert spec.last == NEXT
    assert actual.files[CHANGES] == (ROOT / CHANGES).read_text(encoding="utf-8")
    assert FILE not in str(actual.files.keys())
    assert f"- torch {NEXT} is supported: " in actual.files[pages.CHANGELOG]
    assert f"torch: torch=={NEXT}.0," in actual.files[pages.MATRIX]
    assert f"in torch 2.6 to {NEXT}." in actual.files[pages.RULES]
    assert "guard kept: cpu bf16 polar" in human_list(actual)


def test_patch_applies_to_the_checkout(checkout: Path) -> None:
    mended = tuple(Failure(MENDED.format(dtype), f"{FIXED}a/b#1: x passes on cpu") for dtype in ("bf16", "fp16"))
    actual = proposal(checkout, record(f"{NEXT}.0", failures=mended))
    file = checkout.parent / "release.patch"
    file.write_text(actual.patch, encoding="utf-8")
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(checkout.parent)}
    subprocess.run(["git", "apply", str(file)], cwd=checkout, check=True, env=outside)  # noqa: S607  # found in PATH
    for name, text in actual.files.items():
        assert (checkout / name).read_text(encoding="utf-8") == text
    assert patch(checkout, actual.files) == ""


def test_new_changed_and_gone_rules_have_rows(checkout: Path) -> None:
    gone = observation("rules/cpu/bf16/gone operators", ["dist", "conv3d"], Kind.STATE)
    new = record(
        f"{NEXT}.0",
        observation("rules/cpu/bf16/aten::fresh", "fp32"),
        observation("rules/fake-cuda/bf16/aten::fresh", "promote"),
        observation("rules/cpu/bf16/aten::acos", "fp32"),
        observation("rules/fake-cuda/bf16/aten::softmax.int", "lower_precision_fp"),
        Observation(gone.key, gone.kind, ["conv3d"], test=gone.test),
    )
    rules = parse_spec(proposal(checkout, new).files[SPEC]).rules
    (fresh,), (acos,) = rules["cpu"]["aten::fresh"], rules["cpu"]["aten::acos"]
    assert (fresh.name.value, fresh.since, fresh.source) == ("fp32", NEXT, f"read from the dispatcher of {NEXT}.0")
    assert (acos.since, rules["cuda"]["aten::fresh"][0].name.value) == (NEXT, "promote")
    assert rules["cuda"]["aten::acos"][0].since is None  # CUDA had the rule
    was, now = rules["cuda"]["aten::softmax.int"]
    assert (was.name.value, was.until, now.name.value, now.since) == (
        "fp32_set_opt_dtype",
        LAST,
        "lower_precision_fp",
        NEXT,
    )
    assert rules["cpu"]["aten::conv3d"][0].until == LAST
    assert rules["xpu"]["aten::conv3d"][0].until is None


def test_rows_of_the_spec_round_trip() -> None:
    """Write a row anew without any other change in it."""
    text = (ROOT / SPEC).read_text(encoding="utf-8")
    rows = [line.strip().rstrip(",") for line in text.splitlines() if line.startswith("  { name")]
    assert len(rows) > 150
    assert [row for row in rows if written(toml.loads(f"row = {row}")["row"]) != row] == []


def test_overload_without_a_row_is_refused() -> None:
    text = (ROOT / SPEC).read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="the spec has no row for nowhere"):
        edited(text, RuleChanges(gone={"cpu": ["nowhere"]}), before=LAST, release=NEXT, version=f"{NEXT}.0")


def test_rule_without_a_possible_row_is_listed_for_review(checkout: Path) -> None:
    new = record(
        f"{NEXT}.0",
        observation("rules/cpu/bf16/aten::odd", "fp32"),
        observation("rules/cpu/fp16/aten::odd", "lower_precision_fp"),
    )
    assert "- the rule of odd on cpu is fp32 or lower_precision_fp: no row can say so" in human_list(
        proposal(checkout, new)
    )


def test_mended_fault_has_a_row_for_its_devices_and_dtypes(checkout: Path) -> None:
    both = [
        Failure(MENDED.format(d), f"{FIXED}pytorch/pytorch#1, #2: why passes on cpu-{d}; remove it")
        for d in ("bf16", "fp16")
    ]
    one = Failure("rules/cpu/bf16/test_x::test_y", f"{FIXED}no report found: odd passes on cpu-bf16; remove it")
    red = Failure("rules/cpu/bf16/test_x::test_z", "AmpFailure: softmax is low")
    actual = proposal(checkout, record(f"{NEXT}.0", failures=(*both, one, red)))
    file = checkout / "suites" / FILE
    file.write_text(actual.files[f"suites/{FILE}"], encoding="utf-8")
    first, second = read_known(file)[-2:]
    assert (first.keys, first.report, first.reason, first.until) == (
        (MENDED.format("*").replace("cpu/*", "*"),),
        "pytorch/pytorch#1, #2",
        "why",
        LAST,
    )
    assert (first.devices, first.dtypes) == (("cpu",), ())
    assert (second.keys, second.report) == (("rules/*/test_x::test_y",), "no report found")
    assert (second.devices, second.dtypes) == (("cpu",), ("bf16",))
    page = human_list(actual)
    assert "- AmpFailure: softmax is low: rules/cpu/bf16/test_x::test_z" in page
    assert "on a GPU: make gate AMP_DEVICE=cuda" in page
    again = proposal(checkout, record(f"{NEXT}.0", failures=tuple(both)))
    assert f"suites/{FILE}" not in again.files  # the rows exist


def test_mended_fault_retains_the_columns_of_its_row(checkout: Path) -> None:
    """Change nothing on earlier releases, where the new row applies, too."""
    file = checkout / "suites" / FILE
    columns = ('reason = "why"', 'report = "a/b#1"', 'since = "2.8"', 'raises = "KeyError"')
    row = "\n".join(["[[known]]", 'key = "rules/*/test_x::test_y[*]"', *columns, ""])
    file.write_text(row, encoding="utf-8")
    key = "rules/cpu/bf16/test_x::test_y[a]"
    fixed = Failure(key, f"{FIXED}a/b#1: why passes on cpu-bf16; end its row in {FILE}")
    file.write_text(
        proposal(checkout, record(f"{NEXT}.0", failures=(fixed,))).files[f"suites/{FILE}"], encoding="utf-8"
    )
    rows = read_known(file)
    assert (rows[1].keys, rows[1].since, rows[1].until, rows[1].raises) == (
        ("rules/*/test_x::test_y[a]",),
        "2.8",
        LAST,
        ("KeyError",),
    )
    expected = {"2.7": None, "2.8": rows[1], LAST: rows[1], NEXT: None}
    for release, fault in expected.items():
        assert fault_of(key, rows, release_of(release), device_type="cpu", precision="bf16") is fault
    on_cuda = fault_of(key.replace("cpu", "cuda"), rows, release_of(NEXT), device_type="cuda", precision="bf16")
    assert on_cuda is rows[0]


def test_difference_has_the_reason_of_the_release_notes(checkout: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("# Improvements\n- `clamp_odd` shares its gradient ([#191142](https://example.org))\n- nothing\n")
    keys = ["gradients/cpu/bf16/clamp_odd/input.0", "gradients/cpu/bf16/unheard_of/input.0"]
    old = record(f"{LAST}.0", *(observation(key, 1, Kind.COUNT) for key in keys))
    new = record(f"{NEXT}.0", *(observation(key, 2, Kind.COUNT) for key in keys))
    actual = proposal(checkout, new, old=old, notes=notes)
    row = toml.loads(actual.files[CHANGES])["change"][0]
    assert row == {
        "since": NEXT,
        "keys": ["gradients/*/*/clamp_odd/input.0"],
        "text": "clamp_odd shares its gradient",
        "source": "pytorch/pytorch#191142",
    }
    page = human_list(actual)
    assert "- changed gradients/cpu/bf16/unheard_of/input.0: 1 -> 2" in page
    assert f"- find the release: pytest-amp bisect {LAST}.0 {NEXT}.0 -k test_it --device=cpu --dtype=bf16" in page
    assert "clamp_odd" not in page


def test_new_entry_of_torchs_tests_has_its_reason(checkout: Path) -> None:
    new = record(f"{NEXT}.0", observation("fingerprint/cpu/bf16/nn.Fresh", "fp32 low | =", Kind.DTYPE))
    row = toml.loads(proposal(checkout, new).files[CHANGES])["change"][0]
    assert (row["keys"], row["text"]) == (["fingerprint/*/*/nn.Fresh"], "torch's own tests list it")


def test_fact_of_a_mended_fault_has_its_reason(checkout: Path) -> None:
    key = "rules/cpu/bf16/graphs of equal regions"
    mended = Failure(
        "rules/cpu/bf16/test_it::test_it", f"{FIXED}a/b#7: identity is guarded passes on cpu-bf16; remove it"
    )
    old = record(f"{LAST}.0", observation(key, 3, Kind.COUNT))
    new = record(f"{NEXT}.0", observation(key, 1, Kind.COUNT), failures=(mended,))
    row = toml.loads(proposal(checkout, new, old=old).files[CHANGES])["change"][0]
    assert (row["keys"], row["source"]) == (["rules/*/*/graphs of equal regions"], "a/b#7")
    assert row["text"] == "a fault is mended: identity is guarded"


def test_unexplained_failures_are_listed_by_cause(checkout: Path) -> None:
    name = "nn.functional.linear_cross_entropy.chunked_none"  # changes.toml knows that 2.15 changed it
    fact = observation(f"fingerprint/cpu/bf16/{name}", "fp32 low | =", Kind.DTYPE)
    count = Observation("fingerprint/cpu/bf16/entries", Kind.COUNT, 2, test="test_it::test_it")
    why = "AmpFailure: softmax is low on {}"
    red = [Failure(f"rules/{d}/bf16/test_it::test_it", why.format(d)) for d in ("cpu", "fake-cuda")]
    red.append(Failure("fingerprint/cpu/bf16/test_it::test_it", f"AmpFailure: other dtypes: {name}"))
    new = Record((*SHARED[:2], count, fact), {"torch": "2.15.0"}, complete=True, ran=RAN, failures=tuple(red))
    page = human_list(proposal(checkout, new, old=record("2.14.0")))
    keys = "rules/cpu/bf16/test_it::test_it, rules/fake-cuda/bf16/test_it::test_it"
    assert f"- AmpFailure: softmax is low on cpu: {keys}" in page
    assert "other dtypes" not in page


def test_ambiguous_note_is_no_reason() -> None:
    notes = [Note("clamp_odd is faster", "a#1"), Note("clamp_odd takes bf16", "a#2"), Note("other", "a#3")]
    assert note_of("clamp_odd/input.0", notes) is None
    assert note_of("other", notes) == notes[2]
    assert note_of("nn.Odd", notes) is None


def test_notes_without_a_pull_request_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("- a change\n- another (#123456)\n", encoding="utf-8")
    assert read_notes(tmp_path / "notes.md") == [Note("another", "pytorch/pytorch#123456")]


def test_documented_changes_are_found(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    text = '"""\n.. versionchanged:: 2.15\n    With ``None``, gradients\n    follow.\n\n.. versionadded:: 2.1\n"""\n'
    (package / "api.py").write_text(text, encoding="utf-8")
    assert list(documented(package, "2.15")) == ["torch/api.py:2: With ``None``, gradients follow."]


MATRIX = """
          - { python: "3.12", torch: torch==2.13.0, pytest: pytest==9.2.* }
          - { python: "3.13", torch: torch==2.14.1, pytest: pytest==9.2.* }
          - { python: "3.14", torch: torch==2.14.1, pytest: pytest==9.2.* }
          - { python: "3.13", torch: torch, pytest: "git+https://example.org" }
"""


def test_matrix_retains_the_previous_release() -> None:
    lines = pages.matrix(MATRIX, "2.15.0").splitlines()
    assert [line.partition("torch: ")[2].partition(",")[0] for line in lines[1:]] == [
        *("torch==2.13.0", "torch==2.14.1", "torch==2.15.0", "torch")
    ]
    again = pages.matrix("\n".join(lines), "2.16.0").splitlines()
    assert [line.count("torch==2.15.0") + line.count("torch==2.16.0") for line in again[3:5]] == [1, 1]
    assert pages.matrix(MATRIX, "2.14.1") == MATRIX
