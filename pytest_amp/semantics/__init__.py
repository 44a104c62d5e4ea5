"""A model of autocast's state and of its cast cache, and random programs that hold torch against it."""

from __future__ import annotations
