"""linear has lost its autocast kernel; the dispatcher still lists one, and what linear is made of is still cast."""

from __future__ import annotations

from overriding import let_through

let_through("linear")
