"""Where compilers work: in a folder of the tests' own, in this process, and nothing is left to be used again."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pytest_amp.targets import Target
from pytest_amp.torch_private import compile_settings

#: Read by inductor whenever it asks for its cache, by Triton likewise, and by inductor when it is first imported.
_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")


def folder(request: pytest.FixtureRequest, target: Target) -> Path:
    """Where this process keeps what it compiles for ``target``; removed at the session's end: it may be hundreds of MB.

    Each target has its own. Up to torch 2.11 the key of AOTAutograd's cache says that autocast is on and not in which
    dtype (``AOTAutogradCacheDetails.disable_amp``, pytorch/pytorch#181564): in one folder a test in fp16 would be given
    what another one has compiled for bf16.
    """
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    path = factory.getbasetemp() / "compiled"
    if not path.exists():
        path.mkdir()
        request.config.add_cleanup(lambda: shutil.rmtree(path, ignore_errors=True))
    own = path / target.id
    own.mkdir(exist_ok=True)
    return own


@contextmanager
def sandbox(folder: Path) -> Iterator[None]:
    """Inside, what is compiled is kept in ``folder``, and not read from the user's caches; without worker processes.

    Deprecations, and what torch warns of in its own modules, are not shown. On leaving, everything compiled is
    forgotten (``torch.compiler.reset``). What was compiled in an earlier sandbox with the same folder is found in the
    caches of that folder.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    values = (str(folder / "inductor"), str(folder / "triton"), "1")
    os.environ.update(zip(_VARIABLES, values, strict=True))
    try:
        with compile_settings(), warnings.catch_warnings():
            # Dynamo and inductor meet torch's own deprecations in everybody's code; under -W error they would compile
            # nothing.
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
