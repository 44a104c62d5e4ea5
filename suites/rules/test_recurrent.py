"""Recurrent layers of every kind: the dtype of their outputs, packed or not, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases.limits import lacks_lstm_kernel
from pytest_amp.precision import FP16, dtype_name
from pytest_amp.torch_private import cudnn_enabled

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "RNN": nn.RNN,
    "RNN relu": lambda *sizes, **keywords: nn.RNN(*sizes, nonlinearity="relu", **keywords),
    "LSTM": nn.LSTM,
    "LSTM projected": lambda *sizes, **keywords: nn.LSTM(*sizes, proj_size=2, **keywords),
    "GRU": nn.GRU,
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bidirectional": {"bidirectional": True},
    "two layers": {"num_layers": 2},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
}
LENGTHS = [4, 2]


def _state(kind: str, layer: nn.RNNBase, dtype: torch.dtype, device: torch.device, *, batch: int) -> Any:
    """Return an initial state: two tensors for an LSTM, of which the first may be projected."""
    layers = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.zeros(layers, batch, layer.proj_size or layer.hidden_size, device=device, dtype=dtype)
    if not kind.startswith("LSTM"):
        return hidden
    return hidden, torch.zeros(layers, batch, layer.hidden_size, device=device, dtype=dtype)


def _named(*dtypes: torch.dtype | None) -> str:
    return ", ".join("none" if dtype is None else dtype_name(dtype) for dtype in dtypes)


def _expected(
    amp: SuiteAmp, kind: str, input_dtype: torch.dtype, state: torch.dtype | None, *, packed: bool
) -> list[torch.dtype]:
    """Golden: the dtypes of the result and of the last state.

    CUDA returns float16, in a bfloat16 region, too: autocast's kernel of ``_cudnn_rnn`` casts to nothing else
    (aten/src/ATen/cudnn/AutocastRNN.cpp). On the CPU aten/src/ATen/native/RNN.cpp computes each step's product in low
    precision; the other operand of the step's sum decides the result: the hidden state, by default in the input's
    dtype. RNN's step adds nothing; an LSTM's projection is a product; an LSTM that is not packed runs in oneDNN, which
    returns the low dtype.
    """
    if amp.device.type == "cuda":
        return [torch.float16] * (3 if kind.startswith("LSTM") else 2)
    carried = input_dtype if state is None else state
    if kind.startswith("RNN"):
        return [amp.dtype, amp.dtype]
    if kind == "GRU":
        return [carried, carried]
    if kind == "LSTM projected":
        return [amp.dtype, amp.dtype, carried]
    lacks = lacks_lstm_kernel("cpu", amp.precision.name, training=torch.is_grad_enabled())
    return [carried if packed or lacks else amp.dtype] * 3


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_answer_as_they_did(amp: SuiteAmp, kind: str, form: str, *, packed: bool) -> None:
    """Run float32 and low-precision inputs, without a state or with one of either dtype, with gradients and without.

    In pytorch/pytorch#45048, #88136, #116763 and #116925 some combination raises.
    """
    device = amp.device.torch_device
    layer = KINDS[kind](6, 4, **FORMS[form]).to(device)
    first = layer.batch_first
    actual, expected = {}, {}
    for input_dtype in (torch.float32, amp.dtype):
        rows = torch.randn((2, 4, 6) if first else (4, 2, 6), device=device).to(input_dtype)
        batch: Any = pack_padded_sequence(rows, LENGTHS, batch_first=first) if packed else rows
        for state in (None, torch.float32, amp.dtype):
            if (
                not packed
                and kind == "LSTM"
                and input_dtype is torch.float32
                and lacks_lstm_kernel(amp.device.type, amp.precision.name)
            ):
                continue  # raises there: test_layers has the expected failure
            before = None if state is None else _state(kind, layer, state, device, batch=2)
            for mode in (torch.enable_grad, torch.no_grad):
                case = f"{_named(input_dtype, state)}, {mode.__name__}"
                with mode(), amp.autocast():
                    result, last = layer(batch, before)
                    expected[case] = _expected(amp, kind, input_dtype, state, packed=packed)
                values = result.data if isinstance(result, PackedSequence) else result
                actual[case] = [values.dtype, *(t.dtype for t in (last if isinstance(last, tuple) else (last,)))]
    label = f"{kind}, {form}, {'packed' if packed else 'padded'}"
    amp.observe(label, [f"{case}: {_named(*value)}" for case, value in actual.items()], kind="dtype")
    assert actual == expected


@pytest.mark.amp(devices=["cuda"])  # the CPU has no cuDNN
@pytest.mark.parametrize(
    "cudnn",
    [
        pytest.param(True, id="cuDNN"),
        pytest.param(False, id="torch"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_answer_in_the_dtype_of_the_region_on_cuda(amp: SuiteAmp, kind: str, *, cudnn: bool) -> None:
    """Run with cuDNN and without: torch's own layers are made of cells and products, which CUDA's list has."""
    layer = KINDS[kind](6, 4).to(amp.device.torch_device)
    with cudnn_enabled(enabled=cudnn), amp.autocast():
        result, last = layer(torch.randn(4, 2, 6, device=amp.device.torch_device))
    assert [t.dtype for t in (result, *(last if isinstance(last, tuple) else (last,)))] == [amp.dtype] * (
        3 if kind.startswith("LSTM") else 2
    )


@pytest.mark.parametrize("kind", [key for key in KINDS if key != "LSTM"])
def test_a_packed_sequence_is_computed_as_a_padded_one(amp: SuiteAmp, kind: str) -> None:
    """Packed results are bitwise equal if no row is shorter: packing takes nothing out of the region.

    An LSTM is excluded, whose padded form is oneDNN's; cuDNN has separate kernels, which are compared within two
    roundings.
    """
    layer = KINDS[kind](6, 4).to(amp.device.torch_device)
    rows = torch.randn(4, 2, 6, device=amp.device.torch_device)
    with amp.autocast():
        padded, packed = layer(rows)[0], layer(pack_padded_sequence(rows, [4, 4]))[0].data
    plain = layer(pack_padded_sequence(rows, [4, 4]))[0].data
    if amp.device.type == "cuda":
        error = (packed.view_as(padded).float() - padded.float()).norm() / padded.float().norm()
        assert error <= 2 * FP16.u, f"a packed {kind} differs from the padded one by {error:.3g}"
    else:
        assert torch.equal(packed.view_as(padded), padded)
    assert not torch.equal(padded.float(), layer(rows)[0]), "the layer computes in float32"
    assert not torch.equal(packed.float(), plain), "of a packed sequence the layer computes in float32"


def test_a_packed_lstm_multiplies_low(amp: SuiteAmp) -> None:
    """Outputs are float32 for float32 rows, and products still low: near the float32 result, but different."""
    layer = nn.LSTM(6, 4).to(amp.device.torch_device)
    packed = pack_padded_sequence(torch.randn(4, 2, 6, device=amp.device.torch_device), LENGTHS)
    plain = layer(packed)[0].data
    with amp.autocast():
        actual = layer(packed)[0].data
    error = (actual.float() - plain).norm() / plain.norm()
    assert 0 < error <= 16 * amp.precision.u, f"a packed LSTM differs from float32 by {error:.3g}"


@torch.no_grad()
def _keep_positive(layer: nn.Module) -> None:
    """Move the arguments of ReLU away from zero, where units have no gradient, or only in one of two precisions."""
    for name, parameter in layer.named_parameters():
        if name.startswith("bias"):
            parameter.fill_(2.0)
        elif name.startswith("weight_hh"):
            parameter.abs_()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_input_state_and_weights(amp: SuiteAmp, kind: str, *, packed: bool) -> None:
    """Gradients have their tensor's own dtype, and are near float32's, the initial state's among them."""
    device = amp.device.torch_device
    reason = None if packed or kind != "LSTM" else lacks_lstm_kernel(amp.device.type, amp.precision.name)
    if reason:
        pytest.skip(reason)
    layer = KINDS[kind](6, 4).to(device)
    if kind == "RNN relu":
        _keep_positive(layer)
    rows = torch.randn(4, 2, 6, device=device, requires_grad=True)
    state = _state(kind, layer, torch.float32, device, batch=2)
    states = [t.copy_(torch.randn_like(t)).requires_grad_() for t in (state if isinstance(state, tuple) else (state,))]

    def gradients(*, enabled: bool) -> list[torch.Tensor]:
        batch: Any = pack_padded_sequence(rows, LENGTHS) if packed else rows
        with amp.autocast(enabled=enabled):
            result = layer(batch, tuple(states) if len(states) > 1 else states[0])[0]
            values = result.data if packed else result
            loss = values.float().square().sum()
        return list(torch.autograd.grad(loss, [rows, *states, *layer.parameters()]))

    names = ["input", *(f"state {i}" for i in range(len(states))), *(name for name, _ in layer.named_parameters())]
    for name, actual, plain in zip(names, gradients(enabled=True), gradients(enabled=False), strict=True):
        assert actual.dtype is torch.float32, f"the gradient of {name} is {actual.dtype}"
        error = (actual - plain).norm() / plain.norm()
        assert error <= 32 * amp.precision.u, f"the gradient of {name} differs from float32's by {error:.3g}"


CELLS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "RNNCell": (lambda: nn.RNNCell(6, 4), 1),
    "RNNCell relu": (lambda: nn.RNNCell(6, 4, nonlinearity="relu"), 1),
    "LSTMCell": (lambda: nn.LSTMCell(6, 4), 2),
    "GRUCell": (lambda: nn.GRUCell(6, 4), 1),
}


@pytest.mark.parametrize("cell", CELLS)
def test_cells_answer_as_they_did(amp: SuiteAmp, cell: str) -> None:
    """Golden: low on CUDA, whose list has all four cells; on the CPU only an RNN's.

    Cells that add to their state have its dtype there, or the input's by default.
    """
    cast = amp.device.type == "cuda" or cell.startswith("RNN")
    build, states = CELLS[cell]
    module, device = build().to(amp.device.torch_device), amp.device.torch_device
    actual, expected = {}, {}
    for input_dtype in (torch.float32, amp.dtype):
        for state in (None, torch.float32, amp.dtype):
            hidden = [torch.zeros(2, 4, device=device, dtype=state or input_dtype) for _ in range(states)]
            before: Any = None if state is None else tuple(hidden) if states > 1 else hidden[0]
            with amp.autocast():
                result = module(torch.randn(2, 6, device=device).to(input_dtype), before)
            case = _named(input_dtype, state)
            actual[case] = {t.dtype for t in (result if states > 1 else (result,))}
            expected[case] = {amp.dtype if cast else (state or input_dtype)}
    answers = [f"{case}: {_named(*sorted(value, key=dtype_name))}" for case, value in actual.items()]
    amp.observe(f"{cell} by state", [*answers], kind="dtype")
    assert actual == expected
