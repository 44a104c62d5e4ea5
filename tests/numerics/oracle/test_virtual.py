"""Virtual steps: in any module, torch sees the dtypes of mixed precision, and the values are float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from pytest_amp import torch_private
from pytest_amp.cases import Attention, Case, Realised, cnn, decoder, lstm, mlp
from pytest_amp.devices import find_device
from pytest_amp.numerics.oracle import Predictor, Wide, run_exact, run_virtual
from pytest_amp.numerics.oracle.virtual import values, virtual
from pytest_amp.numerics.prediction import manual_region
from pytest_amp.numerics.step import Step, run_step
from pytest_amp.precision import BF16, FP16, Precision

CPU = find_device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def predicted(case: Case, precision: Precision = BF16, *, inside: bool = False) -> Wide:
    region = manual_region(CPU, precision, inside=inside)
    scale = 1.0 if precision is BF16 else 2.0**12
    return run_virtual(case, case.realise().on("cpu"), region, Predictor("cpu", rounds=True), seed=0, loss_scale=scale)


def real(case: Case, precision: Precision = BF16) -> Step:
    scale = 1.0 if precision is BF16 else 2.0**12
    return run_step(case, case.realise().on("cpu"), lambda: CPU.autocast(precision.dtype), seed=0, loss_scale=scale)


def distances(case: Case, precision: Precision = BF16, *, inside: bool = False) -> dict[str, float]:
    """Return E(amp, predicted) / E(predicted, exact) of every tensor; dtypes agree."""
    wide, amp = predicted(case, precision, inside=inside), real(case, precision)
    exact = run_exact(case, case.realise().on("cpu"), "cpu", seed=0).step.named()
    result, actual = wide.step.named(), {}
    for name, value in amp.named().items():
        if not value.is_floating_point():
            assert torch.equal(value, result[name])
            continue
        assert result[name].dtype == exact[name].dtype == torch.float64
        if not name.startswith("output."):
            assert value.dtype == wide.dtypes[name] == torch.float32
        else:
            assert value.dtype == wide.dtypes[name]
        noise = float((result[name] - exact[name]).norm())
        actual[name] = float((value.double() - result[name]).norm()) / max(
            noise, 1e-12 * float(exact[name].norm()), 1e-30
        )
    return actual


without_low_kernels = pytest.mark.skipif(
    not torch_private.cpu_has_onednn_kernels("bf16"), reason="oneDNN has no bf16 kernels on this CPU"
)


@pytest.mark.parametrize(
    "case",
    [mlp(), *(pytest.param(case, marks=without_low_kernels) for case in (cnn(), lstm()))],
    ids=lambda case: case.name,
)
def test_shallow_models_are_predicted_bit_for_bit_in_bf16(case: Case) -> None:
    """Except for flips of float32 sums in a different order: the median is 0, and the worst near it."""
    actual = sorted(value for name, value in distances(case).items() if name != "0.bias")
    assert actual[len(actual) // 2] < 0.01
    assert actual[-1] < 0.1


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("attention", Attention)
def test_deep_models_have_the_predicted_error(precision: Precision, attention: Attention) -> None:
    actual = distances(decoder(attention=attention), precision)
    del actual["output.loss"]  # one value, whose noise may be small by chance
    assert max(actual.values()) < 1.5


def _case(loss: Callable[[nn.Module, Any], Any], build: Callable[[], nn.Module] | None = None) -> Case:
    def created() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))

    return Case("case", build or created, lambda: {"x": torch.randn(12, 16, requires_grad=True)}, loss)


@dataclass
class Answer:
    logits: Tensor
    extra: dict[str, Tensor]


class Odd(nn.Module):
    """Model with keyword arguments, a dataclass as output, buffers that count and average, and a frozen layer."""

    average: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Linear(16, 32), nn.Linear(32, 32).requires_grad_(requires_grad=False)
        self.last = nn.Linear(32, 16)
        self.register_buffer("average", torch.zeros(32))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, *, x: Tensor, scale: float = 1.0) -> Answer:
        hidden = self.frozen(self.first(x) * scale)
        with torch.no_grad():
            self.average.mul_(0.9).add_(hidden.float().mean(0), alpha=0.1)
            self.calls += 1
        hidden = hidden.clone()
        hidden[:, 0] = 0
        hidden.add_(1)
        return Answer(self.last(hidden), {"hidden": hidden})


def _odd(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    answer: Answer = model(x=batch["x"], scale=0.5)
    return {"a": answer.logits.float().square().mean(), "b": answer.extra["hidden"].float().abs().mean()}


def test_model_with_unusual_inputs_outputs_and_state_is_predicted() -> None:
    actual = distances(_case(_odd, Odd))
    assert "frozen.weight" not in actual
    assert {"buffer.average", "first.weight", "output.a", "output.b", "input.x"} <= actual.keys()
    assert max(actual.values()) < 0.01


def test_tied_weights_stay_tied() -> None:
    case = decoder(tied=True)
    step = predicted(case).step
    assert "embedding.weight" in step.gradients
    assert "head.weight" not in step.gradients


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_model_is_predicted(*, reentrant: bool) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return checkpoint(model, batch["x"], use_reentrant=reentrant).float().square().mean()  # type: ignore[no-any-return]

    actual = distances(_case(loss), inside=True)
    assert max(actual.values()) < 0.01


def test_explicit_casts_act_on_the_virtual_dtype() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"]
        half = x.half()
        assert half.dtype == torch.float16
        assert (half + x).dtype == torch.float32
        assert x.to(torch.bfloat16).float().dtype == torch.float32
        assert x.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
        y = model(half.float())
        assert torch.zeros(3, dtype=y.dtype).dtype == y.dtype
        assert torch.finfo(y.dtype).bits == (32 if y.dtype == torch.float32 else 16)
        both: Tensor = y.to(torch.float16).float() + x.to(torch.bfloat16).float()
        return both.square().mean()

    assert max(distances(_case(loss)).values()) < 0.01


def test_regions_within_the_case_are_respected() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y: Tensor = model(batch["x"])
        assert y.dtype == torch.float32
        product: Tensor = y @ y.T
        return product.float().square().mean()

    assert max(distances(_case(loss), inside=True).values()) < 0.05


def test_dropout_masks_are_the_same() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 16))

    actual = distances(_case(lambda model, batch: model(batch["x"]).float().square().mean(), build))
    assert max(actual.values()) < 0.01


def test_random_operator_advances_the_generator_equally() -> None:
    case = _case(lambda model, batch: (model(batch["x"]).float() + torch.rand(12, 16)).square().mean())
    assert max(distances(case).values()) < 0.01


def test_sparse_gradient_is_predicted() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4))

    case = Case("sparse", build, lambda: torch.tensor([1, 1, 2]), lambda m, x: m(x).float().square().sum())
    assert predicted(case).step.gradients["0.weight"] is not None


def test_complex_gradients_are_conjugated() -> None:
    """Torch marks a tensor as conjugated and lets the next kernel resolve it; a negated one as well."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        result = torch.view_as_complex(model(batch["x"]).float().unflatten(-1, (-1, 2)))
        turned = result * torch.polar(torch.ones(result.shape[-1]), torch.arange(float(result.shape[-1])))
        weights = torch.arange(float(result.shape[-1]))
        return (turned.real * weights).square().mean() + (turned.conj().imag * weights).sum()

    case = _case(loss)
    exact = run_exact(case, case.realise().on("cpu"), "cpu", seed=0).step.named()
    plain = run_step(case, case.realise().on("cpu"), contextlib.nullcontext, seed=0).named()
    assert all(torch.allclose(exact[name], plain[name].double(), rtol=1e-4, atol=1e-5) for name in exact)


def test_tensors_from_factories_are_wide() -> None:
    """index_add requires two equal dtypes, as its arguments are meant to be."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        result = model(batch["x"]).float()
        total = torch.zeros(2, result.shape[-1]).index_add(0, torch.arange(result.shape[0]) % 2, result)
        return (total * torch.full((2, 1), 0.1)).square().mean()

    assert max(distances(_case(loss)).values()) < 0.01


def test_operator_that_reads_bits_receives_those_of_the_dtype() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        exponent = (batch["x"].view(torch.int32) >> 23) & 255  # of float32
        return model(batch["x"]).float().square().mean() * (exponent - 126).float().mean()  # type: ignore[no-any-return]

    assert max(distances(_case(loss)).values()) < 0.01


def test_operator_without_float64_uses_its_float32_kernel() -> None:
    with torch.library._scoped_library("amp_tests", "DEF") as library:
        library.define("narrow(Tensor x) -> Tensor")

        def narrow(x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise NotImplementedError("no kernel for float64")
            return x.clone()

        library.impl("narrow", narrow, "CompositeExplicitAutograd")
        operator = torch.ops.amp_tests.narrow

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            with torch.no_grad():
                shift = operator(batch["x"])
            return model(batch["x"] + shift).float().square().mean()  # type: ignore[no-any-return]

        assert max(distances(_case(loss)).values()) < 0.01


def test_exception_that_the_model_handles_is_left_to_it() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with contextlib.suppress(RuntimeError):
            batch["x"] @ batch["x"]
        return model(batch["x"]).float().square().mean()  # type: ignore[no-any-return]

    assert max(distances(_case(loss)).values()) < 0.01


def test_exact_step_rounds_nothing() -> None:
    case = _case(lambda model, batch: f.mse_loss(model(batch["x"]).half().float(), batch["x"].detach()))
    exact = run_exact(case, case.realise().on("cpu"), "cpu", seed=0).step
    plain = run_step(
        _case(lambda model, batch: f.mse_loss(model(batch["x"]), batch["x"].detach())),
        case.realise().on("cpu", torch.float64),
        contextlib.nullcontext,
        seed=0,
    )
    for name, value in plain.named().items():
        assert torch.allclose(exact.named()[name], value, rtol=1e-12, atol=1e-15)


def test_plain_tensor_receives_written_virtual_values() -> None:
    plain, written = torch.zeros(3), torch.tensor([1 / 3, 2 / 3, 1.0])
    with Predictor("cpu", rounds=True).on():
        plain.add_(virtual(written))
    assert torch.equal(plain, written)


def test_updated_norm_statistics_are_rounded_to_their_dtype() -> None:
    predictor = Predictor("cpu", rounds=True)
    realised = predictor.virtualised(Realised(nn.BatchNorm1d(4), torch.randn(8, 4)))
    with predictor.on():
        realised.model(realised.batch)
    for name in ("running_mean", "running_var"):
        actual = values(realised.model.get_buffer(name))
        assert actual.dtype == torch.float64
        assert torch.equal(actual, actual.float().double()), name
        assert actual.abs().max() > 0


def test_operator_without_a_rounding_model_is_recorded_by_name() -> None:
    predictor = Predictor("cpu", rounds=True)
    with predictor.on():
        a, b, weight = (virtual(torch.randn(*shape).bfloat16()) for shape in ((2, 3), (2, 4), (5, 3, 4)))
        a.mul(2)
        assert predictor.unmodelled == set()
        f.bilinear(a, b, weight)
    assert predictor.unmodelled == {"aten::_trilinear"}
