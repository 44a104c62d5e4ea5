"""Models as users write them: arguments, results, shared, frozen and in-place parts, and other code."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.planted import broken
from tests.numerics.test_check_gradients import run


class Answer(NamedTuple):
    """Result of ``Named``."""

    loss: Tensor
    logits: Tensor


@dataclass
class Output:
    """Output in the style of model libraries: a loss, and values that are not tensors."""

    loss: Tensor
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    cache: object = field(default_factory=object)
    attentions: None = None


@dataclass(frozen=True)
class Inputs:
    """Batch with the keywords of a model."""

    x: Tensor
    mask: Tensor
    scale: float = 0.5


class Model(nn.Module):
    """Model with keyword arguments and an ``Output``."""

    def __init__(self) -> None:
        """Create a layer, one that is frozen, and one with the weight of the first."""
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.last = nn.Linear(16, 16, bias=False)
        self.last.weight = self.first.weight
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, *, x: Tensor, mask: Tensor, scale: float = 1.0) -> Output:
        """Use in-place operators, a checkpoint, and a boolean mask."""
        self.seen += 1
        hidden = f.silu(self.first(x)).mul_(scale).add_(1)
        hidden = checkpoint(self.frozen, hidden, use_reentrant=False)
        logits = self.last(hidden.masked_fill(mask, 0.0))
        return Output(logits.float().square().mean(), logits, (hidden,))


def inputs() -> Inputs:
    return Inputs(torch.randn(12, 16, requires_grad=True), torch.rand(12, 16) < 0.3)


def call(model: nn.Module, batch: Inputs) -> Output:
    return model(x=batch.x, mask=batch.mask, scale=batch.scale)  # type: ignore[no-any-return]


def test_model_with_keywords_and_dataclass_output_is_checked() -> None:
    observed = run(Case("model", Model, inputs, call))
    tensors = {"output.loss", "output.logits", "output.hidden.0", "first.weight", "first.bias", "input.x"}
    assert {f"model/{name}" for name in tensors} <= observed.keys()
    assert not any("frozen" in name or "cache" in name for name in observed)
    assert observed["model/summary.equal"] == 1.0


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda result: Answer(result.loss, result.logits),
        lambda result: {"loss": result.loss, "more": {"logits": result.logits}, "none": None, "count": 3},
        lambda result: {"task": result.loss, "penalty": result.logits.float().abs().mean()},
    ],
    ids=["named tuple", "nested dict", "two losses"],
)
def test_loss_function_may_return_tuples_and_dicts(wrapped: Callable[[Output], Any]) -> None:
    observed = run(Case("model", Model, inputs, lambda model, batch: wrapped(call(model, batch))))
    assert len([name for name in observed if name.startswith("model/output.")]) == 2


def test_dataclass_batch_is_converted() -> None:
    batch = Case("model", Model, inputs, call).realise().on("cpu", torch.float64).batch
    assert isinstance(batch, Inputs)
    assert batch.x.dtype == torch.float64
    assert batch.x.requires_grad
    assert batch.mask.dtype == torch.bool
    assert batch.scale == 0.5


class LeavesTorch(nn.Module):
    """Layer, and a function of its result that leaves torch."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        """Take a function of a detached copy."""
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the function's result."""
        y = self.layer(x)
        return y * self.function(y.detach())  # type: ignore[no-any-return]


def case_that_leaves_torch(function: Callable[[Tensor], Any]) -> Case:
    return Case(
        "beside",
        partial(LeavesTorch, function),
        lambda: torch.randn(12, 16),
        lambda model, x: model(x).float().square().mean(),
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.from_numpy(y.float().numpy() > 0),
        lambda y: float(np.mean(np.abs(y.float().numpy()))),
        lambda y: sum(y.float().flatten().tolist()),
        lambda y: y.abs().max().item(),
        lambda y: 2.0 if (y > 0).any() else 1.0,
        copy.deepcopy,
    ],
    ids=["numpy", "a number of numpy", "list", "item", "branch", "deep copy"],
)
def test_values_that_leave_torch_are_followed(function: Callable[[Tensor], Any]) -> None:
    assert run(case_that_leaves_torch(function))["beside/summary.equal"] == 1.0


def test_numpy_conversion_of_a_tensor_with_gradients_is_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with pytest.raises(RuntimeError, match="requires grad"):
            model.layer(x).float().numpy()  # type: ignore[operator]
        return model(x).float().mean()  # type: ignore[no-any-return]

    case = case_that_leaves_torch(torch.ones_like)
    run(Case("beside", case.build, case.batch, loss))


def test_model_that_cannot_be_followed_is_compared_with_manual_casts() -> None:
    """There is no prediction if C++ code reads the memory of a virtual tensor, which has none."""
    case = case_that_leaves_torch(lambda y: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)))  # type: ignore[attr-defined]
    assert run(case)["beside/summary.equal"] == 1.0
    with pytest.raises(AmpFailure, match=r"differs from manual casts|has an error of"):
        run(case, device=broken("linear", in_eight_bits))


def in_eight_bits(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function and change its result slightly, in any precision."""
    return original(*args, **kwargs) * (1 + 2.0**-8)


def test_loss_without_a_graph_is_refused() -> None:
    case = case_that_leaves_torch(torch.ones_like)
    with pytest.raises(AmpUsageError, match="the loss of beside depends on nothing that requires a gradient"):
        run(Case("beside", case.build, case.batch, lambda model, x: model(x).detach().float().mean()))


class Transformed(nn.Module):
    """Layer, and a transform of it by ``torch.func`` or forward mode."""

    def __init__(self, transform: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]) -> None:
        """Take a transform of the first layer."""
        super().__init__()
        self.layer, self.transform = nn.Linear(16, 16), transform

    def forward(self, x: Tensor) -> Tensor:
        """Return the transform's result, and the layer's own."""
        result: Tensor = self.transform(self.layer, x) + self.layer(x)
        return result


def dual(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    untyped: Any = forward_ad
    with untyped.dual_level():
        primal, tangent = untyped.unpack_dual(function(untyped.make_dual(x, torch.ones_like(x))))
        result: Tensor = primal + tangent
        return result


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "jvp": lambda layer, x: sum(torch.func.jvp(layer, (x,), (torch.ones_like(x),))),
    "forward mode": dual,
    "grad": lambda layer, x: torch.func.grad(lambda z: layer(z).float().square().sum())(x),
    "vjp": lambda layer, x: torch.func.vjp(lambda z: layer(z).float().tanh(), x)[1](x)[0],
    "inner backward": lambda layer, x: torch.autograd.grad(
        layer(x).float().square().sum(), x, create_graph=True, retain_graph=True
    )[0],
}


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms_within_a_model_are_checked(name: str, precision: Precision) -> None:
    """Transforms of torch.func wrap weights; the wrappers are not leaves, so that autocast does not cache them."""
    case = Case(
        "transformed",
        partial(Transformed, TRANSFORMS[name]),
        lambda: torch.randn(12, 16, requires_grad=True),
        lambda model, x: model(x).float().square().mean(),
    )
    assert run(case, precision=precision)["transformed/summary.equal"] == 1.0


def lazy_model() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Dropout(0.2), nn.LazyLinear(4))


def test_lazy_modules_are_initialized_reproducibly() -> None:
    case = Case("lazy", lazy_model, lambda: torch.randn(12, 16), lambda model, x: model(x).float().square().mean())
    assert run(case)["lazy/summary.equal"] == 1.0
    first, second = case.realise(seed=3).model, case.realise(seed=3).model
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert all(module.training for module in first.modules())
    assert dict(first.named_buffers())["1.num_batches_tracked"] == 0


def test_uninitialized_lazy_module_is_refused() -> None:
    class Half(nn.Module):
        """Model that runs its lazy layer in training only."""

        def __init__(self) -> None:
            """Create two layers."""
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.LazyLinear(16)

        def forward(self, x: Tensor) -> Tensor:
            """Run one or two of them."""
            result: Tensor = self.second(self.first(x)) if self.training else self.first(x)
            return result

    case = Case("half", Half, lambda: torch.randn(12, 16), lambda model, x: model(x).float().square().mean())
    with pytest.raises(AmpUsageError, match=r"second\.weight is lazy"):
        run(case)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated:DeprecationWarning")
def test_scripted_module_is_refused() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), torch.jit.script(nn.Linear(16, 16)))

    case = Case("script", build, lambda: torch.randn(12, 16), lambda model, x: model(x).float().square().mean())
    with pytest.raises(AmpUsageError, match=r"case script: 1 is a script, whose operators cannot be recorded"):
        run(case)
    copied = case.realise().on("cpu").model
    torch.autograd.backward(copied(torch.randn(12, 16)).sum())
    assert all(parameter.grad is not None for parameter in copied.parameters())


def test_parameter_without_elements_passes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nothing, self.layer = nn.Parameter(torch.empty(0, 4)), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Any:
            return self.layer(x) + self.nothing.sum()

    case = Case("empty", Model, lambda: torch.randn(12, 16), lambda model, x: model(x).float().square().mean())
    assert math.isfinite(run(case)["empty/summary.excess"])


@pytest.mark.parametrize("part", ["build", "batch"])
def test_error_in_build_or_batch_is_reported_with_its_line(part: str) -> None:
    def broken() -> Any:
        raise KeyError("hidden")

    parts: dict[str, Callable[[], Any]] = {"build": lambda: nn.Linear(4, 4), "batch": lambda: torch.ones(2, 4)}
    case = Case("broken", **{**parts, part: broken}, loss=lambda model, x: model(x).sum())
    with pytest.raises(AmpFailure, match=rf"AmpFailure: broken: its {part} raised KeyError\n  expected .*\n") as raised:
        run(case)
    assert re.search(r"\n  now +KeyError \(test_users_models.py:\d+\): 'hidden', on torch", str(raised.value))
