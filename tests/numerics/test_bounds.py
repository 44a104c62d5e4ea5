"""Checks of tensors against their prediction: each bound from both of its sides."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, predicted, tolerance
from pytest_amp.numerics.compare import Compared
from pytest_amp.numerics.oracle.local import ObservedCall
from pytest_amp.numerics.oracle.models import Model
from pytest_amp.numerics.oracle.places import Direction, Place
from pytest_amp.precision import BF16
from tests.observing import Noted

CASE, CPU = mlp(), find_device("cpu")
WHERE = Conditions(CPU, BF16)


def tensor(*, error: float = 1e-3, noise: float = 1e-3, elements: int = 100, from_model: float = 0.0) -> Compared:
    return Compared("layer.weight", elements, error, noise, error, 0.0, 2 * noise, equal=False, from_model=from_model)


def test_the_numbers_are_those_that_tolerance_derives() -> None:
    """1.31 is the most that healthy tensors made, 0.78 the least; two independent errors are sqrt(2) apart."""
    assert 1.31 < tolerance.EXCESS <= 1.5
    assert 0.25 < tolerance.LEAST < 0.78
    assert tolerance.CERTAIN == 2.0


def check_least(*compared: Compared, where: Conditions = WHERE) -> None:
    predicted.check_least(CASE, where, compared, u=BF16.u)


def test_a_tensor_that_is_more_exact_than_its_rounding() -> None:
    check_least(tensor(error=0.51e-3))
    exact = tensor(error=0.49e-3)
    with pytest.raises(AmpFailure, match=r"layer.weight .* is off by 0.00049 only; 1 of 2 tensors are more exact"):
        check_least(exact, tensor())
    check_least(tensor(error=0.49e-3, elements=tolerance.ENOUGH - 1))  # may be chance
    check_least(tensor(error=0.0, noise=BF16.u / 9))  # hardly anything in it was rounded
    check_least(exact, where=Conditions(CPU, BF16, tolerance_scale=2.0))
    check_least(tensor(error=0.6e-3), where=Conditions(CPU, BF16, tolerance_scale=0.5))  # tighter in what is too large


def check_distance(compared: Sequence[Compared], *unmodelled: str, where: Conditions = WHERE) -> None:
    prediction: Any = SimpleNamespace(unmodelled=frozenset(unmodelled))
    predicted.check_distance(CASE, where, prediction, compared)


def test_a_tensor_that_is_far_from_its_prediction() -> None:
    near, far = tensor(from_model=0.99 * tolerance.FARTHEST), tensor(from_model=1.01 * tolerance.FARTHEST)
    check_distance([near, near])
    with pytest.raises(AmpFailure, match=r"layer.weight .* is 2.14 times the noise from its prediction"):
        check_distance([near, far])
    check_distance([far], "aten::upsample_bilinear2d")  # of which no model says how it rounds
    check_distance([far], where=Conditions(CPU, BF16, tolerance_scale=1.1))


def test_operator_without_a_model_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("layer", Direction.FORWARD, None)
    lost = ObservedCall(place, "aten::odd", (), Model(), (), "no kernel for Double")
    monkeypatch.setattr(predicted, "observed_step", lambda *_, **__: (lost,))
    noted = Noted()
    predicted.check_operators(CASE, CASE.realise(), WHERE, 1.0, noted.observe)
    assert noted["mlp/summary.not_modelled"] == "aten::odd"
