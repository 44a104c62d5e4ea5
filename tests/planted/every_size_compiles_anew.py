"""``dynamic=True`` of ``torch.compile`` does nothing: each size has a graph of its own."""

from __future__ import annotations

from typing import Any

from compiling import replace_compile


def _compile(real: Any, model: Any = None, **keywords: Any) -> Any:
    return real(model, **{**keywords, "dynamic": False})


replace_compile(_compile)
