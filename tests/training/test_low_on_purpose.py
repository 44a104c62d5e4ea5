"""Models with intended low-precision tensors, and models that run within a region only, in every check."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.memory import check_memory
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.numerics.step import DoesNotRun
from pytest_amp.numerics.without_region import without_region
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import standard_step
from pytest_amp.training import Setup, TrainingIteration, TrainingStep, check_training
from tests.observing import Noted, unheeded
from tests.project import Project

BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
CPU = find_device("cpu")


class Adapted(nn.Module):
    """Frozen bf16 layer with float32 adapters and casts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 32).bfloat16().requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 32, bias=False)
        self.last = nn.Linear(32, 4)

    def frozen(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(values.to(self.base.weight.dtype))
        return result.to(values.dtype)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.frozen(values) + self.up(self.down(values)))
        result: torch.Tensor = self.last(hidden)
        return result


class NeedsRegion(Adapted):
    """Model that leaves casting to autocast, and accepts no float32 without it."""

    def frozen(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(values)
        return result


class AsksForRegion(NeedsRegion):
    """Model that refuses to run without autocast, whatever its dtypes are."""

    def frozen(self, values: torch.Tensor) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            raise ValueError("for mixed precision only")
        return super().frozen(values)


class WithConstants(Adapted):
    """Model with a table in bf16, and one in float32 whose values bf16 represents."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.randn(16).bfloat16())
        self.register_buffer("counted", torch.arange(128.0))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values + self.get_buffer("low") + self.get_buffer("counted")[:16] / 128)


class Trained(NeedsRegion):
    """Model with low-precision parameters that the optimizer updates."""

    def __init__(self) -> None:
        super().__init__()
        self.base.float().requires_grad_(requires_grad=True)
        self.last.bfloat16()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.randn(64, 16)
    return values, values[:, :4].argmax(-1)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def case(build: Callable[[], nn.Module]) -> Case:
    return Case("adapted", build, batch, loss)


def train(build: Callable[[], nn.Module], precision: Precision = BF16, step: TrainingStep = standard_step) -> None:
    subject = case(build)
    plain = without_region(subject, Conditions(CPU, precision)).case
    setup = Setup(
        subject, CPU, precision, steps=12, train=step, plain=plain, manual=plain is None,
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    )  # fmt: skip
    check_training(setup, unheeded)


@BOTH
@pytest.mark.parametrize("build", [Adapted, NeedsRegion, AsksForRegion, WithConstants])
def test_training_with_frozen_low_tensors_passes(precision: Precision, build: Callable[[], nn.Module]) -> None:
    train(build, precision)


def test_trained_low_tensors_are_red() -> None:
    with pytest.raises(AmpFailure, match=r"step 0 of the run in bf16: a parameter .*\n.*\n.*last\.weight is bfloat16"):
        train(Trained)


def averages(model: nn.Module, write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    with torch.no_grad():
        for name, weight in model.get_submodule("last").named_parameters():
            average = model.get_parameter(f"teacher.{name}")
            write(average, weight.to(average.dtype))


def in_place(average: torch.Tensor, weight: torch.Tensor) -> None:
    average.mul_(0.9999).add_(weight, alpha=0.0001)


def through_data(average: torch.Tensor, weight: torch.Tensor) -> None:
    average.data.mul_(0.9999).add_(weight.data, alpha=0.0001)


class WithTeacher(Adapted):
    """Model with an average of weights in bf16: all additions to it round away."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.last).bfloat16().requires_grad_(requires_grad=False)


class WithQueue(Adapted):
    """Model with the features of earlier batches in a queue of float32, which the loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(192, 4))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result = super().forward(values)
        queue, place = self.get_buffer("queue"), int(self.get_buffer("place"))
        pull = functional.normalize(result.float(), dim=-1) @ functional.normalize(queue.mean(0), dim=0)
        with torch.no_grad():
            self.write(queue[place : place + len(result)], result)
            self.get_buffer("place").fill_((place + len(result)) % len(queue))
        return result + pull[:, None].clone()

    def write(self, rows: torch.Tensor, features: torch.Tensor) -> None:
        rows.copy_(features)


class WithAverage(WithQueue):
    """Model with an average of features, which starts with the first ones and is rounded."""

    def write(self, rows: torch.Tensor, features: torch.Tensor) -> None:
        began = self.get_buffer("place") >= 64
        rows = self.get_buffer("queue")[: len(features)]
        low = torch.bfloat16 if features.dtype == torch.bfloat16 else torch.float32
        self.get_buffer("queue").copy_((0.9 * rows + 0.1 * features if began else features).to(low).repeat(3, 1))


@BOTH
def test_queue_of_features_may_be_rounded(precision: Precision) -> None:
    """No step adds to what is in the queue: it replaces rows, and low precision loses no update."""
    train(WithQueue, precision)


class Quantized(nn.Module):
    """Model whose forward pass writes the integers of a weight into a buffer, with their gradient."""

    def __init__(self, *, averages: bool = False) -> None:
        super().__init__()
        self.averages, self.weight, self.last = averages, nn.Parameter(torch.randn(32, 16) / 4), nn.Linear(32, 4)
        self.register_buffer("integers", torch.zeros(32, 16))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        scaled = self.weight * 64
        integers = scaled + (scaled.round() - scaled).detach()
        if self.averages:
            integers = (integers + self.get_buffer("integers").detach() / 2).bfloat16().float()
        self.integers = integers
        result: torch.Tensor = self.last(functional.gelu(functional.linear(values, integers / 64)))
        return result


@BOTH
def test_integers_that_each_step_computes_are_no_rounded_state(precision: Precision) -> None:
    train(Quantized, precision)


def test_rounded_average_that_each_step_computes_is_red() -> None:
    with pytest.raises(
        AmpFailure, match=r"a parameter or buffer .*\n.*\n.*integers is float32 with values of bfloat16"
    ):
        train(lambda: Quantized(averages=True))


def test_average_that_starts_with_its_first_value_is_a_failure() -> None:
    with pytest.raises(AmpFailure, match=r"(?s)is not in float32\n.*queue is float32 with values of bfloat16 only"):
        train(WithAverage)


@pytest.mark.parametrize("write", [in_place, through_data])
def test_low_precision_average_of_weights_is_red(write: Callable[[Any, Any], object]) -> None:
    """The average has no gradient, and all of its values stay unchanged, although it is written to."""

    def step(iteration: TrainingIteration) -> None:
        standard_step(iteration)
        averages(iteration.model, write)

    with pytest.raises(AmpFailure, match=r"(?s)is not in float32\n.*teacher\.weight is bfloat16"):
        train(WithTeacher, step=step)


class WithTable(nn.Module):
    """Model with a table of positions, which it keeps in the dtype of its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("table", torch.randn(32))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.first(values)
        table = self.get_buffer("table")
        if table.dtype != hidden.dtype:
            self.table = self.changed(table).to(hidden.dtype)
        result: torch.Tensor = self.last(functional.gelu(hidden + self.get_buffer("table")))
        return result

    def changed(self, table: torch.Tensor) -> torch.Tensor:
        return table


class WithLowSum(WithTable):
    """Model whose table is a sum in the dtype of its activations, in which each update rounds away."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result = super().forward(values)
        self.table = self.get_buffer("table") * (1 + 2.0**-20)
        return result


class WithChangedTable(WithTable):
    def changed(self, table: torch.Tensor) -> torch.Tensor:
        return table + 1.0


@BOTH
def test_table_that_the_model_casts_passes(precision: Precision) -> None:
    train(WithTable, precision)


@pytest.mark.parametrize("build", [WithLowSum, WithChangedTable])
def test_cast_buffer_that_is_updated_is_red(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(AmpFailure, match=r"(?s)is not in float32\n.*table is bfloat16"):
        train(build)


def test_low_constant_that_changes_late_is_red() -> None:
    def step(iteration: TrainingIteration) -> None:
        standard_step(iteration)
        if iteration.index == 6:
            with torch.no_grad():
                iteration.model.get_parameter("base.weight").mul_(2)

    with pytest.raises(AmpFailure, match=r"(?s)step 6 of .* is not in float32\n.*base\.weight is bfloat16"):
        train(Adapted, step=step)


def test_wrong_gradients_of_a_model_that_needs_a_region_are_red() -> None:
    """Plant gradients with the wrong sign in mixed precision."""

    def step(iteration: TrainingIteration) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            value = iteration.loss()
        scaled: Any = iteration.scaler.scale(value)
        scaled.backward()
        if iteration.low:
            for parameter in iteration.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.neg_()
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()

    for build in (NeedsRegion, AsksForRegion):
        with pytest.raises(AmpFailure, match="the loss leaves the band of float32"):
            train(build, step=step)


@BOTH
def test_substitute_for_a_case_is_noted(precision: Precision) -> None:
    where = Conditions(CPU, precision)
    assert without_region(case(Adapted), where).note is None
    note = without_region(case(NeedsRegion), where).note
    assert note is not None
    assert note.startswith("adapted does not run in float32, without autocast: RuntimeError (test_low_on_purpose.py:")
    assert note.endswith("compared with a copy whose low-precision tensors are float32")
    plain = without_region(case(AsksForRegion), where)
    assert plain.case is None
    assert plain.note is not None
    assert plain.note.endswith("for mixed precision only; compared with manual casts")


def test_case_that_runs_nowhere_is_refused_with_its_error() -> None:
    broken = Case("broken", lambda: nn.Linear(3, 4), batch, loss)
    with pytest.raises(DoesNotRun, match=r"(?s)broken does not run in float32, without autocast.*now .*shapes cannot"):
        without_region(broken, Conditions(CPU, BF16))


def test_memory_without_float32_has_no_ratio() -> None:
    where, noted = Conditions(CPU, BF16), Noted()
    use = check_memory(case(AsksForRegion), where, noted.observe, plain=None)
    assert (use.saved_fp32, use.saved_ratio) == (None, None)
    assert set(noted) == {"adapted/bytes saved"}
    with pytest.raises(AmpUsageError, match=r"ceiling=0\.9, and adapted runs within a region only"):
        check_memory(case(AsksForRegion), where, unheeded, plain=None, ceiling=0.9)
    plain = without_region(case(NeedsRegion), where).case
    assert plain is not None
    copied = check_memory(case(NeedsRegion), where, unheeded, plain=plain)
    assert copied.saved_fp32 is not None
    assert copied.saved_ratio != 1


class WrongInLow(torch.autograd.Function):
    """Model whose gradient is half as large again in low precision only."""

    @staticmethod
    def forward(_ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.5 if gradient.dtype == torch.bfloat16 else gradient


@pytest.mark.parametrize("build", [NeedsRegion, AsksForRegion])
def test_gradients_of_a_model_that_needs_a_region_are_checked(build: Callable[[], nn.Module]) -> None:
    where = Conditions(CPU, BF16)
    check_gradients(case(build), where, unheeded)

    def wrong(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        apply: Any = WrongInLow.apply
        return functional.cross_entropy(apply(model(batch[0])).float(), batch[1])

    with pytest.raises(AmpFailure, match=r"wrong: .* loses \d+% of the gradients") as raised:
        check_gradients(Case("wrong", build, batch, wrong), where, unheeded)
    assert "does not run" not in str(raised.value)


NOTED = """
import torch
from torch import nn



def layers():
    return nn.Sequential(nn.Linear(8, 8).bfloat16().requires_grad_(False), nn.Linear(8, 1))


def test_it(amp):
    case = amp.case(layers, lambda: torch.randn(32, 8), lambda model, x: (model(x).float() - 1).square().mean())
    amp.check_memory(case)
    amp.check_casts(case)
    amp.check_scaler(case)
    amp.check_training(case, steps=10, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05))
"""


def test_summary_names_the_substitute_for_float32(project: Project) -> None:
    project.write(test_it=NOTED)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(passed=1)
    text = "it does not run in float32, without autocast: RuntimeError (test_it.py:*): mat1 and mat2 must have the same"
    result.stdout.fnmatch_lines([f"note      cpu-bf16: {text} * compared with a copy whose low-precision tensors *"])
