"""Families for several devices: their requirements, and the report of a run without these."""

from __future__ import annotations

import textwrap

import pytest

from pytest_amp.run import workers
from tests.project import SIMULATED, Project

_FILES = {
    "conftest.py": SIMULATED,
    "pair/__init__.py": """
        from pytest_amp.families import Family
        FAMILY = Family("pair", devices=2)
    """,
    "pair/test_pair.py": """
        def test_two(amp):
            assert True
    """,
    "test_one.py": """
        def test_one(amp):
            assert True
    """,
}


@pytest.fixture
def pair(project: Project) -> Project:
    for name, text in _FILES.items():
        project.file(name, textwrap.dedent(text))
    return project


def test_family_for_two_devices_is_not_run_with_fewer_and_is_reported(pair: Project) -> None:
    actual = pair.apart("--amp-device=simulated", "--amp-dtype=bf16")
    assert actual.ret == 0
    actual.stdout.fnmatch_lines(["ran *project 1*", "not run *1 (needs 2 simulated devices, and there is 0)*"])


def test_family_for_two_devices_runs_on_one_cpu(pair: Project) -> None:
    actual = pair.apart("--amp-device=cpu", "--amp-dtype=bf16")
    assert actual.ret == 0
    actual.stdout.fnmatch_lines(["ran *pair 1*"])


def test_worker_with_one_gpu_counts_the_gpus_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.VISIBLE, "3")
    assert workers.count_devices("cuda") == 1
    assert workers.callers_gpus() == {}
    monkeypatch.setenv(workers.CALLERS, "2,3")
    assert workers.count_devices("cuda") == 2
    assert workers.callers_gpus() == {workers.VISIBLE: "2,3"}
