"""``cross_entropy`` under autocast computes in float32, and returns the autocast dtype."""

from __future__ import annotations

from overriding import override

override("cross_entropy_loss", lambda call: call.run().to(call.low))
