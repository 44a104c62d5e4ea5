"""Nested containers, as torch flattens them, and the arguments and results of operators as flat lists of leaves.

Operators take and return tuples, lists and dicts. torch's own pytree constructs an object for each of these, which took
a third of the time of ``check_gradients``: ``flat`` uses it for containers of other types only, such as named tuples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from pytest_amp.torch_private.gone import PrivateApiGone


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers. Raises PrivateApiGone without ``torch.utils._pytree``."""
    leaves: list[Any] = pytree().tree_leaves(tree)
    return leaves


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``function`` to each leaf of nested containers. Raises PrivateApiGone without ``torch.utils._pytree``."""
    return pytree().tree_map(function, tree)


@functools.cache
def pytree() -> Any:
    """Return the module ``torch.utils._pytree``, without types; PrivateApiGone if there is none."""
    try:
        from torch.utils import _pytree
    except ImportError:
        raise PrivateApiGone("torch.utils._pytree") from None
    return _pytree


#: None for a leaf; for a tuple, list or dict its type, its keys if it is a dict, and the layouts of its items; for any
#: other container pytree's spec and the number of its leaves.
Layout: TypeAlias = tuple[Any, Any, Any] | None


def flat(tree: Any) -> tuple[list[Any], Layout]:
    """Return the leaves of nested containers, and the layout from which ``unflat`` rebuilds the tree.

    Raises PrivateApiGone without ``torch.utils._pytree``, if the tree has a container of another type.
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def unflat(leaves: list[Any], layout: Layout) -> Any:
    """Rebuild a tree with the layout of ``flat`` from ``leaves``."""
    return _rebuild(layout, iter(leaves))


def _flatten(tree: Any, leaves: list[Any]) -> Layout:
    kind = type(tree)
    if kind is tuple or kind is list:
        layouts: list[Layout] = []
        for item in tree:
            if type(item) in _leaf_types():
                leaves.append(item)
                layouts.append(None)
            else:
                layouts.append(_flatten(item, leaves))
        return kind, None, layouts
    if kind is dict:
        return kind, [*tree], [_flatten(item, leaves) for item in tree.values()]
    if isinstance(tree, (tuple, list, dict)) or kind in _registered():
        children, spec = pytree().tree_flatten(tree)
        leaves += children
        return pytree, spec, len(children)
    leaves.append(tree)
    return None


def _rebuild(layout: Layout, leaves: Iterator[Any]) -> Any:
    if layout is None:
        return next(leaves)
    kind, keys, items = layout
    if kind is pytree:
        return pytree().tree_unflatten([next(leaves) for _ in range(items)], keys)
    values = [next(leaves) if item is None else _rebuild(item, leaves) for item in items]
    return dict(zip(keys, values, strict=True)) if kind is dict else kind(values)


@functools.cache
def _leaf_types() -> frozenset[type]:
    """Return the commonest types of leaves, for which ``flat`` makes no further test."""
    import torch

    return frozenset({torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, int, float, bool, str, type(None)})


@functools.cache
def _registered() -> Mapping[type, object]:
    nodes: Mapping[type, object] = pytree().SUPPORTED_NODES
    return nodes
