"""Results of the checks print as tables."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.memory import check_casts, check_memory
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16
from pytest_amp.scaler import ScalerTrace, TraceStep
from pytest_amp.training import Setup, run
from tests.observing import unheeded

pytestmark = pytest.mark.usefixtures("one_thread")
WHERE = Conditions(find_device("cpu"), BF16)


def rows(result: object) -> list[list[str]]:
    return [line.split() for line in str(result).splitlines()]


def test_casts_print_as_a_table() -> None:
    head, *body = rows(check_casts(mlp(), WHERE, unheeded))
    assert head == ["pass", "of", "cast", "count", "bytes"]
    assert any(row[:2] == ["forward", "0.weight"] for row in body)


def test_memory_prints_as_a_table() -> None:
    head, *body = rows(check_memory(mlp(), WHERE, unheeded, plain=mlp()))
    assert head == ["mixed", "precision", "float32", "ratio"]
    assert [row[:3] for row in body] == [["kept", "for", "backward"], ["peak", "of", "tensors"]]


def test_training_prints_as_a_table() -> None:
    setup = Setup(mlp(), find_device("cpu"), BF16, steps=2, make_optimizer=torch.optim.AdamW)
    head, *body = rows(run(setup, low=True))
    assert head[:3] == ["step", "loss", "gradient"]
    assert [row[0] for row in body] == ["0", "1"]


def test_scaler_trace_prints_as_a_table() -> None:
    head, row = rows(ScalerTrace([TraceStep(8.0, found_inf=True, skipped=True, scale_after=4.0, growth_tracker=0)]))
    assert head[:2] == ["iteration", "scale"]
    assert row == ["0", "8", "yes", "yes", "4", "0"]
