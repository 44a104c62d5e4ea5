"""Progress of a long run is printed from time to time, family by family."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_amp.report.progress import line
from tests.project import Project


def test_progress_line_counts_tests_by_family() -> None:
    counts = {}
    selected = {("cpu-bf16", "rules"): 4, ("cpu-fp16", "rules"): 4, ("cpu-bf16", "gradients"): 9}
    for place, passed, failed, skipped in (
        (("cpu-bf16", "rules"), 2, 1, 1),
        (("cpu-fp16", "rules"), 4, 0, 0),
        (("cpu-bf16", "gradients"), 5, 0, 1),
    ):
        counts[place] = Counter(passed=passed, failed=failed, skipped=skipped)
    assert line(selected, counts, 125.0) == "amp 02:05  gradients 6 of 9, rules 8 of 8 (1 red)"


CONFTEST = "from pytest_amp.report import progress\n\nprogress.EVERY = 0.0\n"
TEST = "import pytest\n\n\n@pytest.mark.parametrize('n', range(3))\ndef test_it(amp, n):\n    assert n != 1\n"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_progress_is_printed_during_a_run(project: Project, workers: str) -> None:
    project.write(conftest=CONFTEST, test_it=TEST)
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-n", workers)
    lines = [text for text in result.outlines if text.startswith("amp 00:0")]
    assert len(lines) == "".join(result.outlines).count("amp 00:0")  # each on a line of its own
    assert lines[-1].endswith("project 3 of 3 (1 red)")
    assert any("project 1 of 3" in text for text in lines)


def test_short_run_prints_no_progress(project: Project) -> None:
    project.write(test_it=TEST)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    assert not any(text.startswith("amp 0") for text in result.outlines)
