"""Dropout under autocast drops in evaluation mode, too."""

from __future__ import annotations

from dataclasses import replace

from overriding import override

override("dropout", lambda call: replace(call, args=(*call.args[:2], True)).run())
