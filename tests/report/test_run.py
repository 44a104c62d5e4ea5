"""Reports of a run: functions of one frozen value, without a session, a terminal or a file."""

from __future__ import annotations

from collections import Counter
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from pytest_amp.known.rows import Known
from pytest_amp.record import Baseline, Record, from_baseline
from pytest_amp.report.causes import shortened
from pytest_amp.report.markdown import page
from pytest_amp.report.terminal import summary
from pytest_amp.run.result import AcceptedFault, FailedTest, Run
from tests.report.records import HOSTILE, record

TEXT = "AmpFailure: mm is low on cuda-{}\n  before    float32\n  now       low\n  rerun     pytest test_it.py[{}]\n"


def run() -> Run:
    """Return a failed run that has an example of each part, differs from its baseline, and wrote a file."""
    old, new = record("2.13.0"), record("2.13.0", seed=1)
    baseline = Baseline(old, new.provenance)
    observations = tuple(map(baseline.compare, new.observations))
    gone = [observation for key, observation in old.by_key().items() if key not in new.by_key()]
    new = replace(new, observations=observations)
    failures = tuple(
        FailedTest(f"test_it.py[{dtype}]", f"cuda-{dtype}", "rules", "AmpFailure: mm", TEXT.format(dtype, dtype))
        for dtype in ("bf16", "fp16")
    )
    known = AcceptedFault(Known(("rules/*/*/none",), "a reason", "owner/repo#1"), None, may_exist=False)
    return Run(
        record=new,
        torch="2.13.0",
        baseline=Path("old.json"),
        difference=from_baseline(baseline, new, gone),
        problems=("a problem",),
        notes=tuple(f"note {number}" for number in range(23)),
        failures=failures,
        counts={("cuda-bf16", "rules"): Counter(passed=3, failed=1)},
        deselected={"long tier": 2},
        skips=Counter({"no compiler": 2}),
        skipped_modules={"suites/a.py": "not here"},
        speed="off (command line)",
        known=(known,),
        tests={observation.key: "test_it.py[bf16]" for observation in new.observations},
        earlier_times=({"torch": "2.12.0"},),
        written=("page.md",),
        accepted=None,
    )


def test_summary_has_its_parts_in_order() -> None:
    lines = summary(run())
    labels = list(dict.fromkeys(line.partition(" ")[0] for line in lines if not line.startswith(" ")))
    assert labels[:5] == ["ran", "not", "speed", "skipped", "baseline"]
    verdicts = [label for label in labels if label in ("regressed", "changed", "gone", "inconclusive", "new")]
    assert verdicts == ["regressed", "changed", "gone"]
    assert labels[-3:] == ["cause", "wrote", "note"]
    assert (
        "known     rules/*/*/none: nothing of it ran, and the baseline has no such key: a reason (owner/repo#1)"
        in lines
    )
    assert lines[-1] == "          and 4 more notes", "the note on earlier times is one of them"


def test_summary_of_an_empty_run_is_empty() -> None:
    empty = Record((), {"torch": "2.13.0"})
    nothing = replace(run(), record=empty, baseline=None, difference=None, failures=(), counts={}, known=())
    nothing = replace(nothing, deselected={}, skips=Counter(), skipped_modules={}, speed=None)
    assert summary(replace(nothing, written=(), notes=(), earlier_times=(), problems=())) == []


def test_second_failure_of_a_cause_is_shortened() -> None:
    assert shortened(run()) == {
        "test_it.py[fp16]": "AmpFailure: mm is low on cuda-fp16\n  same as   test_it.py[bf16]\n"
        "  rerun     pytest test_it.py[fp16]"
    }


def test_pages_agree_on_the_color_and_the_counts() -> None:
    pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-amp[html]'")
    from pytest_amp.report.html import of_run

    whole = run()
    green = replace(whole, failures=(), problems=(), record=replace(whole.record, failures=()))
    assert whole.difference is not None
    for result, word in ((whole, "red"), (green, "green")):
        texts = page(result), of_run(result)
        assert all(f"pytest-amp: {word} on torch 2.13.0" in text for text in texts)
        assert all(HOSTILE not in text for text in texts)
    changed = len(whole.difference.groups()[next(v for v in whole.difference.groups() if v.value == "changed")])
    assert f"**changed ({changed})**" in page(whole)
    assert f"changed ({changed})" in of_run(whole)


def test_run_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        run().problems = ()  # type: ignore[misc]
