"""Autocast has a kernel for relu."""

from __future__ import annotations

from overriding import override

override("relu", lambda call: call.cast(call.low).run())
