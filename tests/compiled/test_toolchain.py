"""A compiler that is missing is named; only --amp-allow-missing=compiler turns that into a skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_amp.compiled import sandbox
from tests.project import Project, summary

TEST = """
from pytest_amp.cases import mlp


def test_compiled(amp):
    amp.check_compiled(mlp())


def test_traced(amp):
    amp.check_compiled(mlp(), backend="aot_eager")
"""


def test_a_missing_compiler_is_red_and_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    project.write(test_it=TEST)
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: inductor has no C++ compiler: no-such-compiler does not run (the variable CXX names another)",
            "  accept    --amp-allow-missing=compiler skips what cannot be looked at",
        ]
    )


def test_a_missing_compiler_may_be_allowed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    project.write(test_it=TEST)
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "--amp-allow-missing=compiler", "-k", "compiled")
    result.assert_outcomes(skipped=1, deselected=1)
    assert result.ret == 0
    assert any("as --amp-allow-missing allows: inductor has no C++ compiler" in line for line in summary(result))


def test_the_sandbox_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "of the user")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    before = dict(os.environ)
    with sandbox(tmp_path):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
        assert os.environ["TRITON_CACHE_DIR"].startswith(str(tmp_path))
        assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert dict(os.environ) == before
