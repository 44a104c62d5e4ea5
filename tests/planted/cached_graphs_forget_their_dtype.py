"""The key of AOTAutograd's cache has nothing of the region: code for bf16 is found in a region of fp16."""

from __future__ import annotations

import importlib
from typing import Any

_cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
_before = _cache.AOTAutogradCacheDetails.__init__


def _init(self: Any, *arguments: Any, **keywords: Any) -> None:
    _before(self, *arguments, **keywords)
    self.autocast_state = {}


_cache.AOTAutogradCacheDetails.__init__ = _init
