"""Comparison with a baseline."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_amp.record import EXACT, Kind, Observation, Value, Verdict, compare, unfair
from tests.project import ROOT

KEY = "rules/cpu/bf16/x"


def verdict(now: Value, before: Value, kind: Kind = Kind.STATE, before_kind: Kind | None = None) -> Verdict:
    actual = compare(Observation(KEY, kind, now), Observation(KEY, before_kind or kind, before))
    assert actual.baseline == before or before != before  # noqa: PLR0124  # NaN
    assert actual.value is now
    return actual.verdict


def test_kinds_of_varying_numbers_are_not_exact() -> None:
    assert {kind for kind in Kind if kind not in EXACT} == {
        *(Kind.ERROR, Kind.RATIO, Kind.SECONDS, Kind.BYTES),
        *(Kind.MEASURE, Kind.SERIES),
    }


@pytest.mark.parametrize("kind", sorted(EXACT, key=str))
def test_exact_value_passes_if_equal_and_has_changed_otherwise(kind: Kind) -> None:
    assert verdict("fp32", "fp32", kind) is Verdict.PASS
    assert verdict("fp32", "promote", kind) is Verdict.CHANGED


@pytest.mark.parametrize(
    ("now", "before"),
    [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ("1", 1), (None, "None"), ([1, 2], [2, 1]), ([], {}), ("", None)],
    ids=lambda value: f"{type(value).__name__} {value}",
)
def test_similar_values_of_other_types_or_order_have_changed(now: Value, before: Value) -> None:
    assert verdict(now, before) is Verdict.CHANGED
    assert verdict(before, now) is Verdict.CHANGED


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (float("nan"), float("nan")),
        (float("nan"), "nan"),  # as it is after reading a file
        ([float("inf")], ["inf"]),
    ],
    ids=["dict", "nan", "nan in a file", "inf in a list"],
)
def test_equivalent_values_pass(now: Value, before: Value) -> None:
    assert verdict(now, before) is Verdict.PASS


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in {*EXACT, Kind.ERROR}])
def test_kind_that_varies_from_run_to_run_keeps_its_verdict(kind: Kind) -> None:
    assert verdict(1.0, 2.0, kind) is Verdict.PASS
    failed = Observation(KEY, kind, 1.0, verdict=Verdict.REGRESSED)
    assert compare(failed, Observation(KEY, kind, 1.0)).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("now", "before", "becomes"),
    [
        (1.0, 1.0, Verdict.PASS),
        (1.49, 1.0, Verdict.PASS),
        (1.51, 1.0, Verdict.REGRESSED),
        (1.0, 1.51, Verdict.IMPROVED),
        (0.0, 0.0, Verdict.PASS),
        (0.04, 0.0, Verdict.PASS),  # negligible relative to the allowed error
        (0.08, 0.0, Verdict.REGRESSED),
        (math.nan, 1.0, Verdict.CHANGED),
        (1.0, "inf", Verdict.CHANGED),
        (math.nan, "nan", Verdict.PASS),
    ],
)
def test_errors_are_compared_by_their_ratio(now: Value, before: Value, becomes: Verdict) -> None:
    observed = Observation(KEY, Kind.ERROR, now, allowed=1.0)
    known = Observation(KEY, Kind.ERROR, before, allowed=1.0)
    assert compare(observed, known).verdict is becomes
    unfairly = compare(observed, known, fair=False)
    assert unfairly.verdict is (Verdict.PASS if becomes is Verdict.PASS else Verdict.INCONCLUSIVE)
    failed = replace(observed, verdict=Verdict.REGRESSED)
    assert compare(failed, known).verdict is Verdict.REGRESSED


GPU = {"gpu": "H100", "cuda": "13.0", "cudnn": "91000"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"seed": 1}, "seed 0 before, 1 now"),
        ({"torch": "2.14.1", "date": "later", "tolerance_scale": 2.0}, "tolerance scale 1.0 before, 2.0 now"),
        ({"torch": "2.14.1", "date": "later"}, None),
        ({"devices": {"cuda": {**GPU, "cudnn": "92000", "cuda": "13.1"}}}, None),
        ({"devices": {"cuda": {**GPU, "gpu": "H200"}}}, "cuda: gpu H100 before, H200 now"),
        ({"devices": {"cpu": {}}}, "cuda: gpu H100 before, None now"),
        ({"devices": None}, "cuda: gpu H100 before, None now"),
    ],
)
def test_other_hardware_and_seed_are_unfair_and_another_torch_is_fair(
    change: dict[str, Value], why: str | None
) -> None:
    before: dict[str, Value] = {"seed": 0, "tolerance_scale": 1.0, "torch": "2.13.0", "devices": {"cuda": {**GPU}}}
    assert unfair(before, {**before, **change}, "cuda") == why


def test_missing_seed_is_unfair_and_missing_scale_is_fair() -> None:
    """Every record has the seed, so a missing one differs; the tolerance scale was added later."""
    assert unfair({}, {"seed": 0}, "cpu") == "seed None before, 0 now"
    assert unfair({"seed": 0}, {"seed": 0, "tolerance_scale": 2.0}, "cpu") is None


@pytest.mark.parametrize("allowed", [(1.0, None), (None, 1.0), (1.0, math.inf), (1.0, 0.1), (0.1, 1.0)])
def test_negligible_error_is_relative_to_the_larger_allowed_error(allowed: tuple[float | None, float | None]) -> None:
    none, some, more = (
        [Observation(KEY, Kind.ERROR, value, allowed=limit) for limit in allowed] for value in (0.0, 0.04, 0.08)
    )
    assert compare(some[1], none[0]).verdict is Verdict.PASS
    assert compare(more[1], none[0]).verdict is Verdict.REGRESSED
    assert compare(none[1], some[0]).verdict is Verdict.PASS
    assert compare(none[1], more[0]).verdict is Verdict.IMPROVED


def test_observation_of_another_kind_has_changed() -> None:
    assert verdict(1.0, 1.0, Kind.ERROR, Kind.RATIO) is Verdict.CHANGED
    assert verdict(1, 1, Kind.COUNT, Kind.STATE) is Verdict.CHANGED


def test_observation_without_a_baseline_is_new() -> None:
    now = Observation(KEY, Kind.RULE, "fp32")
    assert compare(now, None).verdict is Verdict.NEW
    failed = Observation(KEY, Kind.RULE, "fp32", verdict=Verdict.REGRESSED)
    assert compare(failed, None).verdict is Verdict.REGRESSED


def test_record_package_imports_neither_torch_nor_pytest() -> None:
    code = "import sys, pytest_amp.record; sys.exit(not {'torch', 'numpy', 'pytest'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("before", "now", "becomes"),
    [
        ("complex64 ? | =", "complex64 complex32 | =", Verdict.OBSERVED),
        ("complex64 complex32 | =", "complex64 ? | =", Verdict.PASS),
        ("fp32,? low; fp32 ? | =", "fp32,int64 low; fp32 low | =", Verdict.OBSERVED),
        ("fp32 ? | =; fp32 low | =", "fp32 low | =", Verdict.OBSERVED),
        ("fp32 ? | = x12; fp32 low | = x12", "fp32 low | =", Verdict.OBSERVED),
        ("fp32 low | = x16; fp32 low | low low x8", "fp32 low | = x10; fp32 low | low low x14", Verdict.CHANGED),
        ("fp32 low | = x16; fp32 low | low low x8", "fp32 low | = x17; fp32 low | low low x8", Verdict.NEW),
        ("fp32 low | = x16; fp32 low | low low x8", "fp32 low | = x15; fp32 low | low low x8", Verdict.INCONCLUSIVE),
        ("fp32 low | =; fp32 low | low low", "fp32 low | = x15; fp32 low | low low x8", Verdict.PASS),
        ("complex64 ? | =", "fp32 complex32 | =", Verdict.CHANGED),
        ("fp32 ? | =", "fp32 low | fp32 low", Verdict.OBSERVED),
        ("fp32 ? | =", "fp32 low | fp32 fp32", Verdict.OBSERVED),
        ("fp32?", "fp32", Verdict.CHANGED),
        ("fp32 ? | =", "fp32 low | =; low low | =", Verdict.CHANGED),
        ("fp32 low | =; ? low | =", "fp32 low | =", Verdict.OBSERVED),
        ("not: needs another build or machine", "fp32 low | =", Verdict.PASS),
        ("not: raises RuntimeError", "not: raises AttributeError", Verdict.PASS),
        ("not: raises RuntimeError", "fp32 low | =", Verdict.OBSERVED),
        ("fp32 low | =", "not: raises RuntimeError", Verdict.CHANGED),
        ("fp32 low | =", "not: needs another build or machine", Verdict.PASS),
    ],
)
def test_unknown_parts_of_a_dtype_table_match_anything(before: str, now: str, becomes: Verdict) -> None:
    old, new = (Observation(KEY, Kind.DTYPE, value) for value in (before, now))
    assert compare(new, old).verdict is becomes
    old, new = (Observation(KEY, Kind.STATE, value) for value in (before, now))
    assert compare(new, old).verdict is Verdict.CHANGED


def test_value_in_another_unit_is_inconclusive() -> None:
    before = Observation(KEY, Kind.ERROR, 0.003, unit="relative L2")
    now = Observation(KEY, Kind.ERROR, 0.7, unit="of what is allowed")
    assert compare(now, before).verdict is Verdict.INCONCLUSIVE
    assert compare(replace(now, unit="relative L2"), before).verdict is Verdict.REGRESSED
