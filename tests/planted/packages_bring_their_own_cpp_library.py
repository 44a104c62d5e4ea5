"""AOTInductor's packages hold a library that is linked to no C++ library: it has one of its own."""

from __future__ import annotations

import zipfile
from typing import Any

import torch._inductor

_inductor: Any = torch._inductor


def _compile_and_package(_program: object, *, package_path: str) -> str:
    with zipfile.ZipFile(package_path, "w") as archive:
        archive.writestr(
            "model/data/aotinductor/model/model.wrapper.so", b"\x7fELF libtorch.so libgcc_s.so.1 libc.so.6"
        )
    return package_path


_inductor.aoti_compile_and_package = _compile_and_package
