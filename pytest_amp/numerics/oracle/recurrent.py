"""oneDNN's LSTM layer in float64: https://uxlfoundation.github.io/oneDNN/dev_guide_rnn.html, LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import Operation

#: ``mode`` of aten::mkldnn_rnn_layer: rnn_mode in aten/src/ATen/native/RNN.h.
LSTM = 2


@dataclass(frozen=True)
class Layer:
    """Input of shape (steps, batch, features), weights of four gates (input, forget, cell, output), first states."""

    x: Tensor
    of_input: Tensor
    of_state: Tensor
    bias: Tensor | None
    h: Tensor
    c: Tensor


@dataclass(frozen=True)
class CellStep:
    """Results of one step: gates after their activation functions, and the states before and after it."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    h: Tensor
    c: Tensor
    before: tuple[Tensor, Tensor]


def unrolled(operation: Operation, layer: Layer, dtype: torch.dtype | None) -> list[CellStep]:
    """Compute every step in order.

    Both states are rounded to ``dtype`` between steps, but the tanh is computed from the unrounded new cell state. The
    gates saved for the backward pass are rounded; the forward pass uses unrounded gates.
    """
    h, c = layer.h, layer.c
    steps = []
    for x in layer.x:
        gates = x @ layer.of_input.T + h @ layer.of_state.T
        if layer.bias is not None:
            gates = gates + layer.bias
        i, f, g, o = gates.chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        before = h, c
        c = f * c + i * g
        h = operation.low(o * c.tanh(), dtype)
        c = operation.low(c, dtype)
        i, f, g, o = (operation.low(gate, dtype) for gate in (i, f, g, o))
        steps.append(CellStep(i, f, g, o, h, c, before))
    return steps


def cpu_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::mkldnn_rnn_layer``: output, hidden and cell state, and a workspace that only oneDNN reads."""
    layer, reverse = _layer(operation)
    steps = unrolled(operation, layer, operation.given[0])
    output = torch.stack([step.h for step in steps])
    output = output.flip(0) if reverse else output
    last = steps[-1]
    h, c = operation.args[5:7]
    return [*operation.finished([output, last.h.view_as(h), last.c.view_as(c), torch.empty(0, dtype=torch.uint8)])]


def _layer(operation: Operation) -> tuple[Layer, bool]:
    x, of_input, of_state, bias1, bias2, h, c, reverse = operation.args[:8]
    mode = operation.argument(9, "mode")
    if mode != LSTM:
        raise NotImplementedError(f"{operation.name} with mode {mode}")
    return _created_layer(operation, (x, of_input, of_state, bias1, bias2), (h, c), reverse=bool(reverse)), bool(
        reverse
    )


def _created_layer(
    operation: Operation, tensors: tuple[Tensor, ...], states: tuple[Tensor, Tensor], *, reverse: bool
) -> Layer:
    x, of_input, of_state, bias1, bias2 = tensors
    batch, width = x.shape[1], of_state.shape[1]
    h, c = (state.reshape(batch, width) for state in states)
    # ATen adds the two biases in their own dtype before it calls oneDNN: aten/src/ATen/native/mkldnn/RNN.cpp.
    bias = operation.low(bias1 + bias2, operation.given[0]) if bias1.numel() else None
    return Layer(x.flip(0) if reverse else x, of_input, of_state, bias, h, c)


def cpu_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::mkldnn_rnn_layer_backward``: gradients of input, both weights, both biases and both states."""
    x, of_input, of_state, bias1, bias2, h, c = operation.args[:7]
    grad, given_h, given_c = operation.args[10:13]
    reverse = bool(operation.argument(13, "reverse"))
    if operation.argument(14, "mode") != LSTM:
        raise NotImplementedError(f"{operation.name} with mode {operation.argument(14, 'mode')}")
    layer = _created_layer(operation, (x, of_input, of_state, bias1, bias2), (h, c), reverse=reverse)
    steps = unrolled(operation, layer, operation.given[0])
    grad = torch.zeros_like(torch.stack([step.h for step in steps])) if grad is None else grad
    grad = grad.flip(0) if reverse else grad
    dh = torch.zeros_like(layer.h) if given_h is None else given_h.reshape(layer.h.shape)
    dc = torch.zeros_like(layer.c) if given_c is None else given_c.reshape(layer.c.shape)
    gates, inputs = [], []
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        dh = dh + grad[index]
        tanh = step.c.tanh()
        dc = dc + dh * step.o * (1 - tanh * tanh)
        d = torch.cat(
            [
                dc * step.g * step.i * (1 - step.i),
                dc * step.before[1] * step.f * (1 - step.f),
                dc * step.i * (1 - step.g * step.g),
                dh * tanh * step.o * (1 - step.o),
            ],
            -1,
        )
        gates.append(operation.low(d, operation.given[0]))
        inputs.append(gates[-1] @ of_input)
        dh, dc = gates[-1] @ of_state, dc * step.f
    gates.reverse()
    inputs.reverse()
    d, dx = torch.stack(gates), torch.stack(inputs)
    hidden = torch.stack([step.before[0] for step in steps])
    bias = d.sum((0, 1))
    results = [
        dx.flip(0) if reverse else dx,
        torch.einsum("tbg,tbi->gi", d, layer.x),
        torch.einsum("tbg,tbh->gh", d, hidden),
        bias,
        bias,
        dh.view_as(h),
        dc.view_as(c),
    ]
    return operation.finished(results)
