"""binary_cross_entropy runs in the autocast dtype: no refusal on CUDA, no float32 on the CPU."""

from __future__ import annotations

from overriding import override

override("binary_cross_entropy", lambda call: call.cast(call.low).run())
