"""Back end of torch.compile that runs graphs in eager, each with a backward pass of its own, as AOTAutograd does.

A gradient of a tensor that several graphs use is summed in each of them first. Eager sums in the order of its calls,
and float16 rounds both sums differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def graph_by_graph(graph: Callable[..., Any], _: Sequence[Any], **_options: Any) -> Callable[..., Any]:
    """Return a graph that Dynamo has traced as one node of autograd, whose operators run in eager."""
    apply: Any = _Graph.apply
    return lambda *inputs: apply(graph, *inputs)


class _Graph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Callable[..., Any], *inputs: Any) -> tuple[Any, ...]:
        with torch.enable_grad():
            ctx.inputs = [x.detach().requires_grad_(x.requires_grad) if _is_tensor(x) else x for x in inputs]
            ctx.results = tuple(graph(*ctx.inputs))
        ctx.set_materialize_grads(False)
        return tuple(x.detach() if _is_tensor(x) else x for x in ctx.results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        pairs = [
            (result, gradient)
            for result, gradient in zip(ctx.results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        leaves = [x for x in ctx.inputs if _is_tensor(x) and x.requires_grad]
        of_leaves: list[Any] = [None] * len(leaves)
        if pairs and leaves:
            results, factors = zip(*pairs, strict=True)
            of_leaves = list(torch.autograd.grad(results, leaves, factors, allow_unused=True))
        rest = iter(of_leaves)
        return None, *(next(rest) if _is_tensor(x) and x.requires_grad else None for x in ctx.inputs)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
