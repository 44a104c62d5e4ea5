"""The speed suite: work of every kind, and a CPU's report of it."""

from __future__ import annotations

import pytest

from suites.speed.work import ON_A_CPU, ROWS, SECONDS, WORKS
from tests.project import ROOT, Project

#: The uses of mixed precision, by the beginnings of the names of their work.
KINDS = (
    *("matmul-4096", "matmul-memory-bound", "matmul-odd", "conv2d", "conv2d-channels-last", "conv3d"),
    *("conv3d-channels-last", "attention-math", "attention-efficient", "attention-flash", "attention-cudnn"),
    *("layer-norm", "rms-norm", "softmax", "cross-entropy", "embedding", "adamw-fused", "adamw-foreach"),
    *("resnet", "encoder", "decoder", "decoder-step", "lstm"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_work_of_every_kind_is_timed(kind: str) -> None:
    assert [work.name for work in WORKS if work.name.startswith(kind)]


def test_names_of_work_are_unique() -> None:
    for works in (WORKS, ON_A_CPU):
        assert len({work.name for work in works}) == len(works)
    assert {work.kind for work in WORKS} == set(SECONDS) == set(ROWS)


def test_cpu_reports_measured_times(project: Project) -> None:
    """Each speedup of its step times has an interval, and no direction: nothing is judged."""
    suite = str(ROOT / "suites" / "speed" / "test_speedups.py")
    options = ("--amp-device=cpu", "--amp-dtype=bf16", "--amp-speed=report", "--amp-record=record.json")
    project.here(suite, "-k", "matmul-512", *options).assert_outcomes(passed=1)
    actual = project.observed("record.json")
    assert {key.rpartition("/")[2] for key in actual} == {"speedup", "float32-time", "autocast-time", "conditions"}
    assert all(key.startswith("speed/cpu/bf16/matmul-512/over-fp32/step/") for key in actual)
    assert all(value > 0 for key, value in actual.items() if not key.endswith("/conditions"))
