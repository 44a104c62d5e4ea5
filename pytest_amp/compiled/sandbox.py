"""Isolation of torch.compile: a temporary cache folder, no worker processes, and a reset before and after."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pytest_amp.run.targets import Target
from pytest_amp.torch_private import compile_settings

#: Inductor and Triton read the cache folders at each access to their caches. Inductor reads the number of compile
#: threads when it is first imported.
_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")


def folder(request: pytest.FixtureRequest, target: Target) -> Path:
    """Return this process's compilation folder for ``target``; it may take hundreds of MB, and the session removes it.

    Each target has a separate folder. Up to torch 2.11 the key of AOTAutograd's cache includes whether autocast is
    enabled, but not its dtype (``AOTAutogradCacheDetails.disable_amp``, pytorch/pytorch#181564): in a shared folder a
    test in fp16 would run code that was compiled for bf16.
    """
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    path = factory.getbasetemp() / "compiled"
    if not path.exists():
        path.mkdir()
        request.config.add_cleanup(lambda: shutil.rmtree(path, ignore_errors=True))
    subfolder = path / target.id
    subfolder.mkdir(exist_ok=True)
    return subfolder


@contextmanager
def sandbox(folder: Path) -> Iterator[None]:
    """Compile into ``folder`` inside the block, without the user's caches and without worker processes.

    Deprecation warnings, and warnings from torch's own modules, are ignored. At the end of the block all compiled code
    is discarded (``torch.compiler.reset``); a later sandbox with the same folder reuses it from the caches on disk.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    values = (str(folder / "inductor"), str(folder / "triton"), "1")
    os.environ.update(zip(_VARIABLES, values, strict=True))
    try:
        with compile_settings(), warnings.catch_warnings():
            # Dynamo and inductor trigger torch's own deprecations for any code; under -W error nothing would compile.
            for category in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", category)
            warnings.filterwarnings("ignore", module=r"torch(\.|$)")
            torch.compiler.reset()
            try:
                yield
            finally:
                torch.compiler.reset()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
