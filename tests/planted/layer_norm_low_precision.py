"""layer_norm runs in the autocast dtype."""

from __future__ import annotations

from overriding import override

override("layer_norm", lambda call: call.cast(call.low).run())
