"""Tensors that operators save for backward: by a manual count, no more than the derivative needs, and no wider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.memory import Passes, Saved, saved_bytes
from pytest_amp.rules.spec import RuleName, expected

#: The derivatives of the remaining operators have not been counted.
pytestmark = pytest.mark.amp(devices=["cpu", "cuda"])

ROWS, COLUMNS = 8, 64
ALL = ROWS * COLUMNS
IMAGES = (2, 4, 8, 8)
WIDE = (RuleName.FP32, RuleName.FP32_SET_OPT_DTYPE, RuleName.FP32_APPEND_DTYPE)

Batch = dict[str, Tensor]


class Given(nn.Module):
    """Arguments of operators in addition to their low-precision input; all are parameters."""

    def __init__(self) -> None:
        """Create a square matrix and two rows."""
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(COLUMNS, COLUMNS))
        self.weight, self.bias = nn.Parameter(torch.randn(COLUMNS)), nn.Parameter(torch.randn(COLUMNS))


Call = Callable[[Tensor, Given, Batch], Tensor]


@dataclass(frozen=True)
class Kept:
    """Tensors that ``call`` saves for a low-precision input, which may be one of them: ``numbers`` values in its dtype.

    That dtype is float32 if ``rule``, an overload, is an fp32 operator on the device; else it is the low dtype.
    ``stored`` is the number of these tensors. ``also`` has the sizes of tensors of other dtypes. ``cuda`` is the
    expectation for CUDA, if its kernel differs. Tensors that exist anyway (parameters, the batch) are not counted.
    """

    call: Call
    numbers: int = 0
    stored: int = 1
    rule: str | None = None
    also: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cuda: Kept | None = None

    def on(self, device_type: str, low: str) -> Saved:
        """Return the expectation in the form of ``saved_bytes``."""
        if device_type == "cuda" and self.cuda is not None:
            return self.cuda.on("cuda", low)
        rule = expected(device_type, torch.__version__).get(f"aten::{self.rule}") if self.rule else None
        dtype = "float32" if rule is not None and rule.name in WIDE else low
        counts = Counter({dtype: self.numbers} if self.numbers else {})
        counts.update({name: sum(sizes) for name, sizes in self.also.items()})
        storages = (self.stored if self.numbers else 0) + sum(len(sizes) for sizes in self.also.values())
        bytes_ = {name: count * getattr(torch, name).itemsize for name, count in counts.items()}
        return Saved(storages, dict(sorted(bytes_.items())))


def _input(function: Callable[[Tensor], Tensor], rule: str | None = None) -> Kept:
    """Return an operator that saves its input, or its result, which has as many values."""
    return Kept(lambda x, _given, _batch: function(x), ALL, rule=rule)


def _nothing(function: Callable[[Tensor], Tensor]) -> Kept:
    """Return an operator whose derivative needs only shapes."""
    return Kept(lambda x, _given, _batch: function(x))


def _loss(function: Callable[[Tensor, Tensor], Tensor], rule: str) -> Kept:
    """Return a loss, which saves its input (or the difference) in its computation dtype; the batch has the targets."""
    return Kept(lambda x, _given, batch: function(x, batch["wide"]), ALL, rule=rule)


def _dropped(x: Tensor, *_: object) -> Tensor:
    return functional.dropout(x, 0.5, training=True)


def _of_classes(x: Tensor, _: Given, batch: Batch) -> Tensor:
    return functional.cross_entropy(x, batch["classes"])


def _of_probabilities(x: Tensor, _: Given, batch: Batch) -> Tensor:
    return functional.cross_entropy(x, batch["wide"])


#: By name; after tools/autograd/derivatives.yaml (tensors that a formula names are saved), and for composite operators
#: after aten/src/ATen/native (Dropout.cpp, Loss.cpp, LossNLL.cpp).
KEPT: dict[str, Kept] = {
    "relu": _input(functional.relu),
    "sigmoid": _input(torch.sigmoid),
    "tanh": _input(torch.tanh),
    "gelu": _input(functional.gelu),
    "silu": _input(functional.silu),
    "mish": _input(functional.mish),
    "hardswish": _input(functional.hardswish),
    "hardtanh": _input(functional.hardtanh),
    "leaky_relu": _input(functional.leaky_relu),
    "elu": _input(functional.elu),
    "glu": _input(functional.glu),
    "softplus": _input(functional.softplus, "softplus"),
    "exp": _input(torch.exp, "exp"),
    "pow": _input(lambda x: x.pow(3), "pow.Tensor_Scalar"),
    "rsqrt": _input(torch.rsqrt, "rsqrt"),
    "square of itself": _input(lambda x: x * x),
    "clamp": _input(lambda x: x.clamp(-1, 1)),
    "softmax": _input(lambda x: x.softmax(-1), "softmax.int"),
    "log_softmax": _input(lambda x: x.log_softmax(-1), "log_softmax.int"),
    "avg_pool2d": _input(lambda x: functional.avg_pool2d(x.view(IMAGES), 2), "avg_pool2d"),
    "max_pool2d": Kept(
        lambda x, *_: functional.max_pool2d(x.view(IMAGES), 2), ALL, also={"int64": (ALL // 4,)}, rule="max_pool2d"
    ),
    "add": Kept(lambda x, _, batch: x + batch["wide"]),
    "mul by what wants no gradient": Kept(lambda x, _, batch: x * batch["wide"]),
    "cat": _nothing(lambda x: torch.cat([x, x])),
    "mean": _nothing(lambda x: x.mean(-1)),
    "sum": _nothing(torch.sum),
    "pad": _nothing(lambda x: functional.pad(x, (1, 1))),
    "transposed copy": _nothing(lambda x: x.t().contiguous()),
    "masked_fill": Kept(lambda x, *_: x.masked_fill(x > 0, 0), also={"bool": (ALL,)}),
    "where": Kept(lambda x, *_: torch.where(x > 0, x, x), also={"bool": (ALL,)}),
    # The noise, in the input's dtype; on CUDA native_dropout keeps which elements stay.
    "dropout": Kept(_dropped, ALL, cuda=Kept(_dropped, also={"bool": (ALL,)})),
    "dropout in evaluation": _nothing(lambda x: functional.dropout(x, 0.5, training=False)),
    "dropout of channels": Kept(lambda x, *_: functional.dropout1d(x.view(2, 4, -1), 0.5, training=True), ROWS),
    "layer_norm": Kept(
        lambda x, layer, _: functional.layer_norm(x, (COLUMNS,), layer.weight, layer.bias),
        ALL,
        rule="layer_norm",
        also={"float32": (ROWS, ROWS)},
    ),
    "group_norm": Kept(
        lambda x, layer, _: functional.group_norm(x, 4, layer.weight, layer.bias),
        ALL,
        rule="group_norm",
        also={"float32": (4 * ROWS, 4 * ROWS)},
    ),
    "batch_norm": Kept(
        lambda x, layer, _: functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True),
        ALL,
        also={"float32": (COLUMNS, COLUMNS)},
    ),
    # Queries, keys and values, which are one here, and the result; of each row the logarithm of its sum.
    "attention": Kept(
        lambda x, *_: functional.scaled_dot_product_attention(*(x.view(IMAGES),) * 3),
        2 * ALL,
        2,
        also={"float32": (64,)},
    ),
    # Its low-precision input, and the weight's low-precision copy.
    "convolution": Kept(
        lambda x, layer, _: functional.conv1d(x[..., None], layer.matrix[..., None], layer.bias), ALL + COLUMNS**2, 2
    ),
    "linear": Kept(lambda x, layer, _: functional.linear(x, layer.matrix, layer.bias), ALL + COLUMNS**2, 2),
    "matmul": Kept(lambda x, layer, _: x @ layer.matrix, ALL + COLUMNS**2, 2),
    "embedding": Kept(lambda _, layer, batch: functional.embedding(batch["classes"], layer.matrix)),
    "mse_loss": _loss(functional.mse_loss, "mse_loss"),
    "l1_loss": _loss(functional.l1_loss, "l1_loss"),
    "smooth_l1_loss": _loss(functional.smooth_l1_loss, "smooth_l1_loss"),
    "binary_cross_entropy_with_logits": _loss(
        functional.binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits"
    ),
    # The logarithms of the probabilities, once, and the sum of the weights, one number. On CUDA cross_entropy_loss has
    # no rule, and requests the input's own dtype from log_softmax, a low one; nll_loss then also saves a float32 copy.
    "cross_entropy": Kept(
        _of_classes, also={"float32": (ALL, 1)}, cuda=Kept(_of_classes, ALL, also={"float32": (ALL, 1)})
    ),
    "cross_entropy of probabilities": Kept(
        _of_probabilities, also={"float32": (ALL,)}, cuda=Kept(_of_probabilities, ALL)
    ),
    "nll_loss": Kept(lambda x, _, batch: functional.nll_loss(x, batch["classes"]), also={"float32": (ALL, 1)}),
}


def _batch() -> Batch:
    return {
        "x": torch.randn(ROWS, COLUMNS).requires_grad_(),
        "wide": torch.rand(ROWS, COLUMNS),
        "classes": torch.randint(COLUMNS, (ROWS,)),
    }


#: CUDA saves tensors of a different kernel on each card: cuDNN has a reserve of its own, attention several back ends.
ON_A_CPU = ("batch_norm", "attention")


@pytest.mark.parametrize(
    "operator", [pytest.param(name, marks=[pytest.mark.amp(devices=["cpu"])] * (name in ON_A_CPU)) for name in KEPT]
)
def test_an_operator_keeps_what_its_derivative_needs(amp: SuiteAmp, operator: str) -> None:
    """Compare storages and bytes by dtype for a low-precision input: an excess that manual casts share shows here."""
    operator_case = KEPT[operator]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, Given)
        return (
            operator_case.call(batch["x"].to(amp.dtype), model, batch).float().sum()
        )  # conversions and sums save nothing

    passes = Passes(Case(operator, Given, _batch, loss), amp.conditions)
    actual, expected = saved_bytes(passes, passes.amp()), operator_case.on(amp.device.type, amp.precision.dtype_name)
    amp.observe(f"{operator}/bytes kept", actual.bytes, kind="count", unit="bytes")
    if actual != expected:
        raise AmpFailure(
            f"{operator} keeps {actual.storages} tensors for backward under {amp.conditions}",
            label_before="needed",
            before=f"{expected.storages} tensors, bytes by dtype {expected.by_dtype or 'none'}",
            now=amp.conditions.now(f"{actual.storages} tensors, bytes by dtype {actual.by_dtype or 'none'}"),
            likely="it saves its input in addition to its result, or in a wider dtype than it computes in",
        )
