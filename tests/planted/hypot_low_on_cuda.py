"""hypot is cast to the autocast dtype on CUDA; on a CPU it is left alone."""

from __future__ import annotations

from overriding import override

override("hypot", lambda call: call.cast(call.low).run(), device_types=["cuda"])
