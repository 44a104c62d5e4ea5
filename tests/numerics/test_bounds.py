"""Checks of tensors against their prediction: each bound from both sides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, chance, compare, predicted, tolerance
from pytest_amp.numerics.compare import Compared
from pytest_amp.numerics.oracle.models import Model
from pytest_amp.numerics.oracle.module_places import Direction, Place
from pytest_amp.numerics.oracle.observer import ObservedCall
from pytest_amp.precision import BF16
from tests.observing import Noted, unheeded

CASE, CPU = mlp(), find_device("cpu")
WHERE = Conditions(CPU, BF16)


def tensor(
    *, error: float = 1e-3, noise: float = 1e-3, elements: int = 100, from_model: float = 0.0, distance: float = 1.0
) -> Compared:
    return Compared(
        "layer.weight", elements, error, noise, error, distance, 2 * noise, equal=False, from_model=from_model
    )


def test_tolerance_bounds_lie_between_healthy_and_faulty_errors() -> None:
    """1.31 is the largest value of healthy tensors, 0.78 the smallest; two independent errors are sqrt(2) apart."""
    assert 1.31 < tolerance.EXCESS <= 1.5
    assert 0.25 < tolerance.LEAST < 0.78
    assert tolerance.CERTAIN == 2.0


@pytest.fixture
def drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each further draw equal to the first one."""
    monkeypatch.setattr(chance, "confirmed", lambda bad, *_, **__: list(bad))
    monkeypatch.setattr(chance, "_has_sparse", lambda _: False)


def stub(*unmodelled: str, conditions: Conditions = WHERE, problem: str | None = None, faults: int = 0) -> Any:
    """Return a run whose step and prediction are not examined."""
    call = SimpleNamespace(problem=problem, operator="aten::odd", results=())
    prediction = SimpleNamespace(unmodelled=frozenset(unmodelled), same_device=True)
    return SimpleNamespace(
        case=CASE,
        conditions=conditions,
        prediction=prediction,
        operators=(call,),
        faults=[call] * faults,
        step_of=None,
        adds_in_any_order=False,
    )


TOO_EXACT = tensor(error=0.49e-3)


def test_too_exact_tensor_is_red_if_an_operator_received_another_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chance, "_other_dtypes", lambda _: ("addmm", "float32", "bfloat16"))
    with pytest.raises(
        AmpFailure, match=r"mlp: addmm is given float32 .* layer.weight has an error of only 0.00049"
    ) as raised:
        chance.check_dtypes_given(stub(), [TOO_EXACT, tensor()], unheeded)
    assert "manual casts give it bfloat16" in str(raised.value)
    for healthy in (
        tensor(error=0.51e-3),
        tensor(error=0.49e-3, elements=tolerance.ENOUGH - 1),  # may be chance
        tensor(error=0.0, noise=BF16.u / 9),  # hardly anything in it was rounded
    ):
        chance.check_dtypes_given(stub(), [healthy], unheeded)
    chance.check_dtypes_given(stub(conditions=Conditions(CPU, BF16, tolerance_scale=2.0)), [TOO_EXACT], unheeded)


def test_improved_kernel_is_recorded_and_not_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chance, "_other_dtypes", lambda _: None)
    run, noted = stub(), Noted()
    run.operators[0].results = (SimpleNamespace(dtype=BF16.dtype, elements=64, error=1e-4, ideal=1e-3),)
    chance.check_dtypes_given(run, [TOO_EXACT], noted.observe)
    assert noted == {"mlp/summary.improved": "aten::odd"}


@pytest.mark.usefixtures("drawn_again")
def test_tensor_far_from_its_prediction_is_red() -> None:
    near, far = tensor(from_model=0.99 * tolerance.FARTHEST), tensor(from_model=1.01 * tolerance.FARTHEST)
    chance.check_distance(stub(), [near, near])
    with pytest.raises(AmpFailure, match=r"layer.weight .* is 2.14 times the noise from its prediction"):
        chance.check_distance(stub(), [near, far])
    chance.check_distance(stub("aten::upsample_bilinear2d"), [far])  # without a model of its rounding
    chance.check_distance(stub(conditions=Conditions(CPU, BF16, tolerance_scale=1.1)), [far])


@pytest.mark.usefixtures("drawn_again")
def test_equality_with_manual_casts_passes_unless_operators_are_faulty() -> None:
    far = replace(tensor(from_model=9.0), equal=True)
    chance.check_distance(stub(), [far])
    assert chance.not_acquitted(stub(), [far, tensor()]) == [tensor()]
    atomics = tensor(from_model=9.0, distance=0.9 * tolerance.SAME)
    other = tensor(from_model=9.0, distance=1.1 * tolerance.SAME)
    assert chance.not_acquitted(stub(), [atomics, other]) == [other]
    for run in (stub(problem="no kernel for Double"), stub(faults=1)):
        with pytest.raises(AmpFailure, match="9 times the noise"):
            chance.check_distance(run, [far])


def test_distance_is_judged_by_the_median_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of three draws decides."""
    monkeypatch.setattr(compare, "_drawn", lambda *_: [tensor(from_model=1.0)])
    chance.check_distance(stub(), [tensor(from_model=9.0)])
    monkeypatch.setattr(compare, "_drawn", lambda *_: [tensor(from_model=5.0)])
    with pytest.raises(AmpFailure, match="9 times the noise"):
        chance.check_distance(stub(), [tensor(from_model=9.0)])


def test_operator_without_a_model_is_recorded() -> None:
    place = Place("layer", Direction.FORWARD, None)
    lost = ObservedCall(place, "aten::odd", (), Model(), (), "no kernel for Double")
    noted = Noted()
    predicted.check_operators(CASE, WHERE, [lost], noted.observe)
    assert noted["mlp/summary.not_modelled"] == "aten::odd"
