"""Harm of low precision is measured against float64, and branches for low dtypes are compared without rounding."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases import Case, mlp
from pytest_amp.check.collect import Collector
from pytest_amp.check.entry import Entry
from pytest_amp.check.harm import LIMIT, LOSS_LIMIT, Errors, Harm, _harmful, loss_ratio, measured, ratio_of
from pytest_amp.check.own import Part
from pytest_amp.check.plan import Plan
from pytest_amp.devices import find_device
from pytest_amp.lint import Severity
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16, FP16, Precision
from tests.check.models import Batch, by_angles, by_low_angles, by_nothing, marked, mean_in_the_low_dtype, turned

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])


def harm_of(case: Case, precision: Precision) -> Harm:
    return Harm(case, Conditions(find_device("cpu"), precision), 0)


def lines(text: str) -> set[int]:
    return {int(line) for line in re.findall(r"models\.py:(\d+)", text)}


@BOTH
@pytest.mark.parametrize("case", [mlp(), turned(by_nothing), turned(by_angles)], ids=["mlp", "silu", "angles"])
def test_healthy_model_has_no_harm(case: Case, precision: Precision) -> None:
    entries, ratio = measured(harm_of(case, precision), [])
    assert entries == []
    assert ratio <= LIMIT


@BOTH
def test_harmful_cast_is_named(precision: Precision) -> None:
    (entry,), ratio = measured(harm_of(turned(by_low_angles), precision), [])
    assert ratio > LIMIT
    assert entry.kind == "harmful-cast"
    assert entry.is_error
    assert lines(entry.site) <= marked("low_angles")
    assert entry.harm is not None
    assert entry.harm > LIMIT


def with_a_rounded_output(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return an output in float32 that was rounded to eight bits, and that no gradient passes."""
    scores = model(batch["x"], batch["at"]).float()
    exact = batch["at"] / 3000
    return {"loss": functional.cross_entropy(scores, batch["y"]), "time": exact.to(torch.bfloat16).float()}


@BOTH
def test_cast_that_harms_only_an_output_is_named(precision: Precision) -> None:
    (entry,), ratio = measured(harm_of(replace(turned(by_nothing), loss=with_a_rounded_output), precision), [])
    assert ratio > LIMIT
    assert entry.kind == "harmful-cast"
    assert entry.site.endswith(f"test_harm.py:{with_a_rounded_output.__code__.co_firstlineno + 4}")


def test_mean_of_losses_in_fp16_is_harmful() -> None:
    case = replace(turned(by_nothing), loss=mean_in_the_low_dtype)
    (entry,), ratio = measured(harm_of(case, FP16), [])
    assert ratio > LIMIT
    assert lines(entry.site) == marked("low_mean")


def adversarial(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a discriminator, which a CPU computes in the dtype of the scores: 100.24 becomes 100."""
    scores = model(batch["x"], batch["at"])
    return functional.softplus(-scores).mean() * 1e-3 + 100.24


def test_loss_that_is_low_by_the_rules_of_autocast_is_no_harm() -> None:
    """It is rounded once, and the model's code casts nothing: a finding of the linter stays a warning."""
    line = f"test_harm.py:{adversarial.__code__.co_firstlineno + 3}"
    warning = Entry(kind="low-loss", severity=Severity.WARNING, module="", site=line, message="the loss is low")
    harm = harm_of(replace(turned(by_nothing), loss=adversarial), BF16)
    assert loss_ratio(harm.errors(), harm.errors(harm.parts), BF16.u) > LOSS_LIMIT
    entries, ratio = measured(harm, [warning])
    assert [(entry.kind, entry.is_error) for entry in entries] == [("low-loss", False)]
    assert ratio <= LIMIT


def test_linter_finding_has_the_harm_of_its_function() -> None:
    harm = harm_of(turned(by_low_angles), BF16)
    harm.errors()
    part = next(part for part in harm.parts.values() if part.cast_lines)
    site = next(iter(part.lines))
    warning = Entry(kind="low-angles", severity=Severity.WARNING, module="", site=site, message="angles are low")
    entries, _ = measured(harm, [warning])
    assert [(entry.kind, entry.is_error) for entry in entries] == [("low-angles", True)]


def test_error_ratios_handle_non_finite_and_small_errors() -> None:
    good, bad = Errors(1e-3, 1e-3, 1e-4), Errors(math.inf, 1e-3, 1e-4)
    assert ratio_of(bad, good, BF16.u) == math.inf
    assert ratio_of(good, bad, BF16.u) == 1.0
    assert ratio_of(replace(good, gradients=3e-3), good, BF16.u) == pytest.approx(3.0)
    assert loss_ratio(replace(good, loss=BF16.u), good, BF16.u) == pytest.approx(BF16.u / 1e-4)
    assert loss_ratio(replace(good, loss=BF16.u / 8), good, BF16.u) == 1.0


class DropsRows(nn.Module):
    """Residual blocks whose rows are dropped at random, by a mask in the dtype of the activations."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the branches that are not dropped."""
        for block in self.blocks:
            y = torch.tanh(block(x))
            rows = torch.empty((len(y), 1), dtype=y.dtype).bernoulli_(0.9).div_(0.9)
            x = torch.add(y * rows, torch.sin(y), alpha=0.5)
        return x


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return functional.mse_loss(model(x).float(), torch.ones_like(x))


@BOTH
def test_mask_drawn_in_the_dtype_of_the_activations_is_no_harmful_cast(precision: Precision) -> None:
    entries, _ = measured(harm_of(Case("drops", DropsRows, lambda: torch.randn(32, 16), squares), precision), [])
    assert entries == []


class WritesLowRows(nn.Module):
    """Angles that are written into low-precision memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return features turned by angles of a table."""
        y = self.first(x)
        table = torch.empty(16, dtype=y.dtype)
        table[:] = torch.arange(16) * 10.37
        return torch.mul(y, torch.sin(table.float()))


@BOTH
def test_values_written_into_low_memory_are_a_cast(precision: Precision) -> None:
    case = Case("writes", WritesLowRows, lambda: torch.randn(32, 16), squares)
    (entry,), ratio = measured(harm_of(case, precision), [])
    assert ratio > LIMIT
    assert entry.site.endswith(f"test_harm.py:{WritesLowRows.forward.__code__.co_firstlineno + 4}")


def by_low_values_alone(x: Tensor, _at: Tensor) -> Tensor:
    rounded = x.float().bfloat16()
    if rounded.dtype is not torch.bfloat16:
        raise ValueError("only bfloat16")
    return rounded.to(x.dtype)


@BOTH
def test_harm_of_a_step_that_needs_its_low_precision_is_not_measured(precision: Precision) -> None:
    case = turned(by_low_values_alone)
    entries, ratio = measured(harm_of(case, precision), [])
    assert entries == []
    assert math.isnan(ratio)
    collector = Collector([])
    conditions = Conditions(find_device("cpu"), precision)
    Plan(case, conditions, collector, train=None, evaluate=None, optimizer=None).measure_harm()
    assert [(line.check, line.verdict) for line in collector.lines] == [("harm", "cannot tell")]


def test_function_of_a_library_is_not_called_by_the_name_of_its_caller() -> None:
    part = Part(("library.py", 1), "encoder", "loss", libraries={"library/layers.py:12": None})
    assert _harmful(part, 2.0, Severity.ERROR).message.startswith("a function of a library casts to a low dtype")
    part = Part(("model.py", 1), "encoder", "rotate", lines={"model.py:3": None})
    assert _harmful(part, 2.0, Severity.ERROR).message.startswith("rotate casts to a low dtype")
