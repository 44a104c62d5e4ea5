"""Buffers in a step: counts, tables that are cast, shared ones, and those that a forward pass registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, Realised, named_buffers
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.case_run import CaseRun
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.numerics.step import Step
from pytest_amp.precision import BF16
from tests.observing import Noted, unheeded

pytestmark = pytest.mark.usefixtures("one_thread")


class Counting(nn.Module):
    """Module that counts its calls, and those under autocast ``times``."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.linear = times, nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("calls").add_(self.times if torch.is_autocast_enabled("cpu") else 1)
        result: torch.Tensor = self.linear(x)
        return result


def counted(times: int) -> None:
    case = Case(
        "counting",
        lambda: Counting(times),
        lambda: torch.randn(4, 8),
        lambda model, x: model(x).float().square().mean(),
    )
    check_gradients(case, Conditions(find_device("cpu"), BF16), unheeded)


def test_equal_count_under_autocast_passes() -> None:
    counted(1)


def test_different_count_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"calls.* is \[2, 2\], without autocast it is \[1, 1\]"):
        counted(2)


class Positions(nn.Module):
    """Module with a table that it casts to the dtype of its activations, and with ``update`` changes, too."""

    def __init__(self, *, update: bool) -> None:
        super().__init__()
        self.update, self.linear = update, nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8.0).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(x)
        table = self.get_buffer("table").to(hidden.dtype)
        self.table = table * 0.75 if self.update else table
        return hidden + self.table


def positioned(*, update: bool) -> None:
    case = Case(
        "positioned",
        lambda: Positions(update=update),
        lambda: torch.randn(4, 8),
        lambda model, x: model(x).float().square().mean(),
    )
    check_gradients(case, Conditions(find_device("cpu"), BF16), unheeded)


def test_unchanged_table_cast_by_the_model_passes() -> None:
    positioned(update=False)


def test_updated_statistic_cast_by_the_model_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"buffer table .* has dtype bfloat16, it should have float32"):
        positioned(update=True)


class Sharing(nn.Module):
    """Two layers that share a buffer, which ``Module.to`` copies for each if it changes the device or the dtype."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        for layer in self.layers:
            layer.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * layer.get_buffer("mask")
        return x


class Registering(nn.Module):
    """Module whose forward pass registers two buffers and deletes one, in the steps that ``condition`` selects."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self.condition, self.linear = condition, nn.Linear(8, 8)
        self.register_buffer("unused", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(x)
        if self.condition():
            self.register_buffer("mean", hidden.detach().mean(0))
            self.register_buffer("rows", torch.tensor(len(x)))
            del self.unused
        return hidden


def observed_of(build: Callable[[], nn.Module]) -> dict[str, float]:
    observed = Noted()
    case = Case("buffers", build, lambda: torch.randn(4, 8), lambda model, x: model(x).float().square().mean())
    check_gradients(case, Conditions(find_device("cpu"), BF16), observed.observe)
    return observed


@pytest.mark.parametrize("mask", [torch.arange(8) > 2, torch.arange(8.0)], ids=["bool", "float32"])
def test_shared_buffer_is_compared_by_each_name(mask: torch.Tensor) -> None:
    names = set(observed_of(lambda: Sharing(mask.clone())))
    compared = {f"buffers/buffer.layers.{index}.mask" for index in (0, 1)}
    assert names & compared == (compared if mask.is_floating_point() else set())


def test_shared_buffer_that_a_device_copies_has_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(self: Realised) -> nn.Module:
        model = original(self)
        for layer in model.layers:  # type: ignore[union-attr]  # modules
            layer.mask = layer.mask.clone()
        return model

    original = Realised._copied
    monkeypatch.setattr(Realised, "_copied", copied)
    assert "buffers/output.loss" in observed_of(lambda: Sharing(torch.arange(8) > 2))


def test_wide_copy_of_a_model_shares_its_buffers() -> None:
    model = Realised(Sharing(torch.arange(8.0)), None).on("cpu", torch.float64).model
    first, second = named_buffers(model).values()
    assert first is second
    assert first.dtype == torch.float64


CONDITIONS: dict[str, Callable[[], bool]] = {
    "every step": lambda: True,
    "steps in a region": lambda: torch.is_autocast_enabled("cpu"),
    "steps outside of regions": lambda: not torch.is_autocast_enabled("cpu"),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_buffer_registered_in_forward_is_compared_if_both_steps_have_it(condition: str) -> None:
    names = observed_of(lambda: Registering(CONDITIONS[condition]))
    assert ("buffers/buffer.mean" in names) == (condition == "every step")


@pytest.mark.parametrize(("changed", "words"), [({}, "rows .* does not exist"), ({"late": 1}, "late .* exists")])
def test_buffer_in_only_one_step_is_named(changed: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: CaseRun) -> Step:
        result = original(self)
        buffers = {name: value for name, value in result.buffers.items() if changed or name != "rows"}
        return replace(result, buffers={**buffers, **{name: torch.tensor(value) for name, value in changed.items()}})

    original = CaseRun.step
    monkeypatch.setattr(CaseRun, "step", step)
    with pytest.raises(AmpFailure, match=f"buffer {words}"):
        observed_of(lambda: Registering(CONDITIONS["every step"]))
