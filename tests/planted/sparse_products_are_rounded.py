"""A product of a sparse matrix keeps its dtype under autocast, and three bits of its values."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _mm(call: Overridden) -> Any:
    made = call.cast(call.low).run()
    sparse = call.args[0].layout != torch.strided and made.layout == torch.strided
    return made.to(torch.float8_e4m3fn).to(made.dtype) if sparse else made


override("mm", _mm)
