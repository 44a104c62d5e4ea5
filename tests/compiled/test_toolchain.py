"""Missing compilers are named; only --amp-allow-missing=compiler turns one into a skip."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_amp.compiled import sandbox
from pytest_amp.torch_private import vectors_are_tried
from tests.project import Project, summary

TEST = """
from pytest_amp.cases import mlp


def test_compiled(amp):
    amp.check_compiled(mlp())


def test_traced(amp):
    amp.check_compiled(mlp(), backend="aot_eager")
"""


def test_missing_compiler_is_red_and_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    project.write(test_it=TEST)
    result = project.fresh("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: inductor has no C++ compiler: no-such-compiler does not run (the variable CXX names another)",
            "  accept    --amp-allow-missing=compiler skips checks with missing requirements",
        ]
    )


def test_missing_compiler_is_skipped_when_allowed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    project.write(test_it=TEST)
    result = project.fresh("--amp-device=cpu", "--amp-dtype=bf16", "--amp-allow-missing=compiler", "-k", "compiled")
    result.assert_outcomes(skipped=1, deselected=1)
    assert result.ret == 0
    assert any("as --amp-allow-missing allows: inductor has no C++ compiler" in line for line in summary(result))


#: Compiler that predates AVX-512: inductor has to try the available instruction sets, unlike with newer ones.
OLD_COMPILER = """#!/bin/sh
case "$*" in *avx512*) echo "unrecognized command-line option -mavx512f" >&2; exit 1;; esac
exec {} "$@"
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to wrap as an older one")
def test_older_compiler_is_sufficient(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = project.file("old-g++", OLD_COMPILER.format(shutil.which("g++")))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    project.write(
        test_it="""
        from pytest_amp.compiled import sandbox

        def test_it(amp, tmp_path):
            with sandbox(tmp_path):
                amp.need_compiler()
        """
    )
    project.fresh("--amp-device=cpu", "--amp-dtype=bf16").assert_outcomes(passed=1)


def test_sandbox_restores_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "of the user")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    before = dict(os.environ)
    with sandbox(tmp_path):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
        assert os.environ["TRITON_CACHE_DIR"].startswith(str(tmp_path))
        assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert dict(os.environ) == before


def test_sandbox_restores_torch_settings(tmp_path: Path) -> None:
    guards: Any = importlib.import_module("torch._dynamo.guards")
    config: Any = importlib.import_module("torch._inductor.config")
    before = guards.profile_guard_manager, config.cpp.vec_isa_ok, config.compile_threads
    with sandbox(tmp_path):
        assert guards.profile_guard_manager is not before[0]
        assert config.cpp.vec_isa_ok is True
        with vectors_are_tried():
            assert config.cpp.vec_isa_ok is None
    assert (guards.profile_guard_manager, config.cpp.vec_isa_ok, config.compile_threads) == before


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile with")
def test_compile_workers_stop_after_the_block(project: Project) -> None:
    project.write(
        test_it="""
        import torch
        from pytest_amp.compiled import sandbox
        from pytest_amp.torch_private import compile_workers
        from torch._inductor import config
        from torch._inductor.async_compile import _pool_set

        def test_it(amp, tmp_path):
            with sandbox(tmp_path):
                with compile_workers(2):
                    assert config.compile_threads == 2
                    found = torch.compile(lambda x: torch.exp(x * 2 + 1), backend="inductor")(torch.ones(16))
                assert config.compile_threads == 1
                assert not _pool_set
            assert torch.allclose(found, torch.full((16,), 20.0855))
        """
    )
    project.fresh("--amp-device=cpu", "--amp-dtype=bf16").assert_outcomes(passed=1)


def test_each_dtype_has_its_own_folder_removed_after_the_session(project: Project) -> None:
    """Nothing compiled for one dtype is visible to the other: up to torch 2.11 the key of a cache lacks the dtype."""
    project.write(
        test_it="""
        from pytest_amp.compiled import folder

        def test_it(amp, request):
            own = folder(request, amp.target)
            assert not any(own.iterdir())
            (own / "compiled here").write_text(str(own))
            with open("folders", "a") as file:
                print(own, file=file)
        """
    )
    project.fresh("--amp-device=cpu", "--amp-dtype=bf16,fp16").assert_outcomes(passed=2)
    folders = {Path(line) for line in (project.path / "folders").read_text().splitlines()}
    assert len(folders) == 2
    assert not any(path.exists() or path.parent.exists() for path in folders)
