"""What may import what, and other habits that a reader of one file cannot see."""

from __future__ import annotations
