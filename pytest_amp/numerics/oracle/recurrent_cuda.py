"""cuDNN's recurrent layers in float64, forward and backward: aten/src/ATen/native/cudnn/RNN.cpp.

https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-adv-library.html, cudnnRNNMode_t, has the formulas.

In bf16 the following products are rounded: the state's part of the gates and, in the backward pass, the gradients that
are passed between steps and between layers. Measured shares of equal elements (cuDNN 9.19, H200): outputs and states of
17 of 21 LSTM, GRU and tanh layers 0.99 to 1.000, otherwise 0.53 to 0.86; gradients except those of recurrent weights
1.000 for LSTM and tanh over 8 steps, otherwise 0.5. In fp16 other kernels run, which do not round these products if a
layer is small (0.98 of the elements of an LSTM, 0.99 of tanh).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import Operation

#: ``mode``: cudnnRNNMode_t.
RELU, TANH, LSTM, GRU = range(4)


@dataclass(frozen=True)
class Cell:
    """Layer in one direction: the weights of all gates, and the dtype in which states are stored."""

    mode: int
    of_input: Tensor
    of_state: Tensor
    biases: tuple[Tensor, Tensor] | None
    operation: Operation
    dtype: torch.dtype | None

    def low(self, values: Tensor) -> Tensor:
        """Round ``values`` to the dtype in which the kernel stores them."""
        return self.operation.low(values, self.dtype)

    def product(self, values: Tensor) -> Tensor:
        """Round a product that is passed between steps, if the dtype is bf16."""
        return self.low(values) if self.dtype == torch.bfloat16 else values


@dataclass(frozen=True)
class Kept:
    """Values that a step saves for the backward pass: its gates, the states before it, and the new cell state."""

    gates: tuple[Tensor, ...]
    h: Tensor
    c: Tensor | None
    cell: Tensor | None


def step(cell: Cell, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None, Kept]:
    """Compute the states after one step. ``x`` is the contribution of the input to the gates."""
    of_state = cell.product(h @ cell.of_state.T)
    first, second = cell.biases if cell.biases is not None else (0.0, 0.0)
    if cell.mode == GRU:
        xr, xz, xn = (x + first).chunk(3, -1)
        hr, hz, hn = (of_state + second).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        stored = tuple(cell.low(gate) for gate in (r, z, n, hn))
        return cell.low(n + z * (h - n)), None, Kept(stored, h, None, None)
    gates = x + of_state + first + second
    if cell.mode == LSTM:
        assert c is not None
        i, f, g, o = gates.chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        new = f * c + i * g
        stored = tuple(cell.low(gate) for gate in (i, f, g, o))
        return cell.low(o * new.tanh()), cell.low(new), Kept(stored, h, c, cell.low(new))
    new = cell.low(gates.tanh() if cell.mode == TANH else gates.relu())
    return new, None, Kept((new,), h, None, None)


def step_back(cell: Cell, stored: Kept, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the gradients of both contributions to the gates (input and state), and of both previous states."""
    if cell.mode == GRU:
        r, z, n, hn = stored.gates
        dn = dh * (1 - z) * (1 - n * n)
        dr, dz = dn * hn * r * (1 - r), dh * (stored.h - n) * z * (1 - z)
        of_input = cell.low(torch.cat([dr, dz, dn], -1))
        of_state = cell.low(torch.cat([dr, dz, dn * r], -1))
        return of_input, of_state, dh * z + of_state @ cell.of_state, None
    if cell.mode == LSTM:
        assert stored.cell is not None
        assert stored.c is not None
        assert dc is not None
        i, f, g, o = stored.gates
        tanh = stored.cell.tanh()
        dc = dc + dh * o * (1 - tanh * tanh)
        parts = dc * g * i * (1 - i), dc * stored.c * f * (1 - f), dc * i * (1 - g * g), dh * tanh * o * (1 - o)
        gates = cell.low(torch.cat(parts, -1))
        return gates, gates, cell.product(gates @ cell.of_state), cell.product(dc * f)
    (new,) = stored.gates
    gates = cell.low(dh * (1 - new * new) if cell.mode == TANH else dh * (new > 0))
    return gates, gates, cell.product(gates @ cell.of_state), None


@dataclass(frozen=True)
class Network:
    """The arguments of ``aten::_cudnn_rnn`` that the computation needs; ``x`` has the steps first."""

    operation: Operation
    x: Tensor
    weights: list[Tensor]
    stride: int
    h: Tensor
    c: Tensor | None
    mode: int
    layers: int
    directions: int
    dtype: torch.dtype | None

    def cells(self) -> Iterator[tuple[int, int, Cell]]:
        """Yield layer, direction and cell. Autocast's weights are flat, with one column: _cudnn_rnn_cast_reflatten."""
        width = self.h.shape[-1]
        for index in range(self.layers * self.directions):
            weights = self.weights[index * self.stride : (index + 1) * self.stride]
            biases = (weights[2].flatten(), weights[3].flatten()) if self.stride == 4 else None
            of_state = weights[1].reshape(-1, width)
            of_input = weights[0].reshape(of_state.shape[0], -1)
            cell = Cell(self.mode, of_input, of_state, biases, self.operation, self.dtype)
            yield index // self.directions, index % self.directions, cell


def network(operation: Operation, places: tuple[int, ...]) -> Network:
    """Return the network of a call; ``places`` are those of ``_FORWARD`` or ``_BACKWARD``."""
    args = operation.args
    h, c, mode, projection, layers, batch_first, dropout, train, bidirectional, sizes = (
        args[place] for place in places
    )
    if projection or list(sizes) or (dropout and train and layers > 1):
        raise NotImplementedError(f"{operation.name} with projections, packed sequences or dropout")
    x = args[0].transpose(0, 1) if batch_first else args[0]
    directions = 2 if bidirectional else 1
    return Network(operation, x, list(args[1]), args[2], h, c, mode, layers, directions, operation.given[0])


def run(net: Network) -> tuple[Tensor, Tensor, Tensor | None, list[list[Kept]], list[Tensor]]:
    """Compute output, last states, the saved values of each cell's steps, and the input of each layer."""
    x, inputs, stored, last_h, last_c = net.x, [], [], [], []
    outputs: list[Tensor] = []
    for layer, direction, cell in net.cells():
        if direction == 0:
            x = torch.cat(outputs, -1) if layer else x
            inputs.append(x)
            outputs = []
        index = layer * net.directions + direction
        h, c = net.h[index], None if net.c is None else net.c[index]
        parts, steps, states = cell.low(x @ cell.of_input.T), [], []
        for part in parts.flip(0) if direction else parts:
            h, c, of_step = step(cell, part, h, c)
            steps.append(of_step)
            states.append(h)
        output = torch.stack(states)
        outputs.append(output.flip(0) if direction else output)
        stored.append(steps)
        last_h.append(h)
        last_c.append(c)
    cells = None if net.c is None else torch.stack([cell for cell in last_c if cell is not None])
    return torch.cat(outputs, -1), torch.stack(last_h), cells, stored, inputs


#: Indices of hx, cx, mode, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes.
_FORWARD = (4, 5, 6, 8, 9, 10, 11, 12, 13, 14)
_BACKWARD = (4, 5, 10, 12, 13, 14, 15, 16, 17, 18)


def forward(operation: Operation) -> list[Any]:
    """Compute ``aten::_cudnn_rnn``: output, states, an unused reserve, and the weights' buffer unchanged."""
    net = network(operation, _FORWARD)
    output, h, c, _, _ = run(net)
    output = output.transpose(0, 1) if operation.args[10] else output
    reserve = torch.empty(0, dtype=torch.uint8, device=output.device)
    nothing = output.new_zeros(0)
    buffer = nothing if operation.args[3] is None else operation.args[3]
    return operation.finished([output, h, nothing if c is None else c, reserve, buffer])


def backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_cudnn_rnn_backward``: gradients of input, states and weights."""
    net = network(operation, _BACKWARD)
    grad, given_h, given_c = operation.args[7:10]
    mask, batch_first = operation.args[21], operation.args[14]
    output, _, _, stored, inputs = run(net)
    below = torch.zeros_like(output) if grad is None else grad.transpose(0, 1) if batch_first else grad
    weights: list[list[Tensor]] = []
    dhs: list[Tensor] = []
    dcs: list[Tensor | None] = []
    cells = list(net.cells())
    for layer in range(net.layers - 1, -1, -1):
        above = below.chunk(net.directions, -1)
        below = torch.zeros_like(inputs[layer])
        for direction in range(net.directions - 1, -1, -1):
            index = layer * net.directions + direction
            cell = cells[index][2]
            incoming = above[direction].flip(0) if direction else above[direction]
            dh = torch.zeros_like(net.h[index]) if given_h is None else given_h[index]
            dc = None if net.c is None else torch.zeros_like(net.c[index]) if given_c is None else given_c[index]
            of_input: list[Tensor] = []
            of_state: list[Tensor] = []
            for of_step, more in zip(reversed(stored[index]), reversed(incoming.unbind(0)), strict=True):
                dx, ds, dh, dc = step_back(cell, of_step, dh + more, dc)
                of_input.insert(0, dx)
                of_state.insert(0, ds)
            gates, states = torch.stack(of_input), torch.stack(of_state)
            x = inputs[layer].flip(0) if direction else inputs[layer]
            part = gates @ cell.of_input
            below = below + (part.flip(0) if direction else part)
            layer_gradients = [
                torch.einsum("tbg,tbi->gi", gates, x),
                torch.einsum("tbg,tbh->gh", states, torch.stack([of_step.h for of_step in stored[index]])),
            ]
            layer_gradients += [gates.sum((0, 1)), states.sum((0, 1))] if cell.biases is not None else []
            weights.insert(0, layer_gradients)
            dhs.insert(0, dh)
            dcs.insert(0, dc)
        below = cells[layer * net.directions][2].product(below)
    dx = below.transpose(0, 1) if batch_first else below
    h = torch.stack(dhs)
    c = None if net.c is None else torch.stack([cell for cell in dcs if cell is not None])
    flat = [gradient for layer in weights for gradient in layer]
    flat = [gradient.view_as(weight) for gradient, weight in zip(flat, net.weights, strict=True)] if mask[3] else []
    return operation.finished([dx, h, c, *flat])
