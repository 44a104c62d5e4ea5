"""Nested containers, as torch flattens them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested containers. Raises PrivateApiGone without ``torch.utils._pytree``."""
    leaves: list[Any] = pytree().tree_leaves(tree)
    return leaves


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested containers with ``function`` of each leaf. Raises PrivateApiGone without ``torch.utils._pytree``."""
    return pytree().tree_map(function, tree)


@functools.cache
def pytree() -> Any:
    """The module ``torch.utils._pytree``, without types; PrivateApiGone if there is none."""
    try:
        from torch.utils import _pytree
    except ImportError:
        raise PrivateApiGone("torch.utils._pytree") from None
    return _pytree
