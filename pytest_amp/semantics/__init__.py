"""A model of autocast's state and of its cast cache, and random programs that compare torch with it."""

from __future__ import annotations
