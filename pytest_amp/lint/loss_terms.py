"""Terms of a loss: the single values that a differentiated loss is made of."""

from __future__ import annotations

from collections.abc import Collection

import torch

from pytest_amp.lint.program import PRODUCTS, Call, Program

REDUCTIONS = ("mean", "sum", "nansum")
#: Operators that join the terms of a loss in one tensor, and those that may follow.
_JOINING, _JOINED = ("stack", "cat"), ("mul", "div", "add", "sub", "index")


def loss_terms(roots: Collection[Call]) -> set[Call]:
    """Return the calls that compute the terms of losses, back to the model's last products.

    A value that is combined with tensors of more elements, as the statistics of a norm are, is no term.
    """
    terms: set[Call] = set()
    todo = list(roots)
    while todo:
        call = todo.pop()
        if call in terms:
            continue
        terms.add(call)
        if call.operator not in PRODUCTS:
            makers = (operand.producer for operand in call.operands)
            todo += [maker for maker in makers if maker is not None and (maker.numel == 1 or _is_joined(maker))]
    return terms


def _is_joined(call: Call) -> bool:
    """Return whether a call stacks single values, or computes elementwise with such a stack."""
    if call.operator in _JOINING:
        return all(operand.numel == 1 for operand in call.operands)
    makers = (operand.producer for operand in call.operands)
    return call.operator in _JOINED and any(maker is not None and _is_joined(maker) for maker in makers)


def is_narrowed(call: Call) -> bool:
    """Return whether a call casts a computed float32 value, not a parameter."""
    return call.is_cast and call.operands[0].dtype is torch.float32 and call.operands[0].producer is not None


def is_reduced(call: Call) -> bool:
    """Return whether a call reduces several differentiated elements to one value."""
    if (call.operator not in REDUCTIONS and "loss" not in call.operator) or call.numel != 1 or not call.operands:
        return False
    return call.operands[0].numel > 1 and call.operands[0].requires_grad


def is_statistic(call: Call, program: Program) -> bool:
    """Return whether a reduced value is combined with tensors of more elements; a loss or a metric is not."""

    def is_of_single_values(use: Call) -> bool:
        return use.operator not in _JOINING and all(operand.numel == 1 for operand in use.operands)

    uses = program.uses(call, is_of_single_values)
    return call.numel > 1 or any(use.numel > 1 and use.operator not in _JOINING for use in uses)
