"""Caches of ``functools`` that hold tensors of a run which has ended."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from dataclasses import dataclass
from typing import Any

_Wrapper: Any = type(functools.lru_cache(maxsize=1)(lambda: None))
_CONTAINERS = (tuple, list, dict)


@dataclass
class _Cache:
    """Weak reference to a cache, and the number of entries that had been added to it when it was last searched."""

    reference: weakref.ref[Any]
    added: int = -1

    def forget(self, kind: type) -> None:
        """Clear the cache if it holds an instance of ``kind``; one without new entries is not searched."""
        cache = self.reference()
        if cache is None or cache.cache_info().misses == self.added:
            return
        self.added = cache.cache_info().misses
        if any(_holds(entry, kind) for entry in gc.get_referents(cache)):
            cache.cache_clear()
            self.added = -1


#: Caches of the process, and the number of modules with which they were listed: a list takes a tenth of a second.
_LISTED: list[_Cache] = []
_modules = 0


def forget_cached(kind: type) -> None:
    """Clear each ``functools.lru_cache`` that holds an instance of ``kind``, or a container of them.

    Libraries cache position embeddings by shape, device and dtype, in functions that all copies of a model share.
    """
    for cache in _caches():
        cache.forget(kind)


def _caches() -> list[_Cache]:
    global _modules  # noqa: PLW0603  # the list belongs to the process, as its modules do
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        _LISTED[:] = [_Cache(weakref.ref(item)) for item in gc.get_objects() if type(item) is _Wrapper]
    return _LISTED


def _holds(entry: Any, kind: type) -> bool:
    if isinstance(entry, kind):
        return True
    return type(entry) in _CONTAINERS and any(isinstance(item, kind) for item in gc.get_referents(entry))
