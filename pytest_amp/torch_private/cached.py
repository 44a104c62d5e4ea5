"""Caches of ``functools`` that hold tensors of a run which has ended."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import Any

_Wrapper: Any = type(functools.lru_cache(maxsize=1)(lambda: None))
_CONTAINERS = (tuple, list, dict)
#: Caches of the process, and the number of modules with which they were listed: a list takes a tenth of a second.
_LISTED: list[weakref.ref[Any]] = []
_modules = 0


def forget_cached(kind: type) -> None:
    """Clear each ``functools.lru_cache`` that holds an instance of ``kind``, or a container of them.

    Libraries cache position embeddings by shape, device and dtype, in functions that all copies of a model share.
    """
    for reference in _caches():
        cache = reference()
        if cache is not None and any(_holds(entry, kind) for entry in gc.get_referents(cache)):
            cache.cache_clear()


def _caches() -> list[weakref.ref[Any]]:
    global _modules  # noqa: PLW0603  # the list belongs to the process, as its modules do
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        _LISTED[:] = [weakref.ref(item) for item in gc.get_objects() if type(item) is _Wrapper]
    return _LISTED


def _holds(entry: Any, kind: type) -> bool:
    if isinstance(entry, kind):
        return True
    return type(entry) in _CONTAINERS and any(isinstance(item, kind) for item in gc.get_referents(entry))
