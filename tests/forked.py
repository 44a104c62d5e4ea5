"""Run of pytest in a process that is forked from one which has imported torch already."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

#: An import of torch takes longer than most runs. Optimizers and fake tensors import torch._dynamo.
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["torch._dynamo", "numpy", "pytest"])


def run_pytest(
    arguments: Sequence[str],
    folder: Path,
    output: Path,
    *,
    errors: Path | None = None,
    timeout: float,
    environment: Mapping[str, str],
) -> int | None:
    """Run pytest in ``folder``, and return its exit status: negative for a signal, None if ``timeout`` seconds passed.

    It writes to the file ``output``, its errors to ``errors`` if that is another. It finds modules as
    ``python -m pytest`` does in that folder and ``environment``.
    """
    paths = [str(folder), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *_installed_paths()]
    files = (Path(os.devnull), output, errors or output)
    process = _FORKING.Process(target=_run, args=(list(arguments), paths, files, dict(environment)))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


@functools.cache
def _installed_paths() -> tuple[str, ...]:
    """Return the paths of modules that this interpreter has in any folder and environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", "import sys; print(*sys.path, sep='\\n')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return tuple(done.stdout.splitlines())


def _run(arguments: list[str], paths: list[str], files: tuple[Path, ...], environment: dict[str, str]) -> None:
    """Run pytest in the new process, in the first of ``paths``; ``files`` are its input, output and errors."""
    for number, path in enumerate(files):
        descriptor = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(paths[0])
    sys.path[:] = paths
    gc.freeze()  # pytest collects garbage three times, and objects of torch's import are none
    sys.argv = ["pytest", *arguments]
    sys.exit(pytest.main(arguments))
