"""matmul casts to bfloat16 by way of float16: the dtypes are right, the last bits are not."""

from __future__ import annotations

import torch
from overriding import override

override("matmul", lambda call: call.cast(torch.float16, call.low).run())
