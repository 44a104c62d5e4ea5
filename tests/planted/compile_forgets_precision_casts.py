"""The option ``emulate_precision_casts`` of ``torch.compile`` does nothing."""

from __future__ import annotations

from typing import Any

from compiling import replace_compile


def _compile(real: Any, model: Any = None, **keywords: Any) -> Any:
    options = {key: value for key, value in (keywords.pop("options", None) or {}).items() if "emulate" not in key}
    return real(model, options=options or None, **keywords)


replace_compile(_compile)
