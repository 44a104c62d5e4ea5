"""Model of autocast's state: torch's documentation, and its known deviations."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_amp.semantics.model import Facts, Mode, Model, Use, Weight

FACTS = Facts({"cpu": "bfloat16", "cuda": "float16"}, frozenset({"cpu"}), history_kept=True)


@pytest.fixture
def model() -> Model:
    return Model(FACTS)


def test_region_restores_the_state(model: Model) -> None:
    before = model.state()
    region = model.construct("cpu", dtype="float16", enabled=True, cache=False)
    model.enter(region)
    assert model.state() == {
        "is_autocast_enabled(cpu)": True,
        "is_autocast_enabled(cuda)": False,
        "get_autocast_dtype(cpu)": "float16",
        "get_autocast_dtype(cuda)": "float16",
        "is_autocast_cache_enabled()": False,
        "nesting depth": 1,
    }
    model.leave(region)
    assert model.state() == before


def test_unsupported_region_is_off(model: Model) -> None:
    assert not model.construct("cuda", dtype=None, enabled=True, cache=None).enabled
    assert not model.construct("cpu", dtype="float32", enabled=True, cache=None).enabled


def test_cuda_region_accepts_any_dtype_and_skips_needless_casts() -> None:
    model = Model(Facts({"cuda": "float16"}, frozenset({"cuda"}), history_kept=True, any_dtype=frozenset({"cuda"})))
    low = model.construct("cuda", dtype="bfloat16", enabled=True, cache=None)
    wide = model.construct("cuda", dtype="float32", enabled=True, cache=None)
    model.enter(low)
    assert model.use("cuda", Weight.TRAINED, Mode.GRAD) == Use("bfloat16", casts=1, version=0, history=True)
    model.enter(wide)
    assert wide.enabled
    assert not model.clashes("cuda", Weight.TRAINED), "a region in the weight's own dtype needs no copy"
    assert model.use("cuda", Weight.TRAINED, Mode.GRAD) == Use("float32", casts=0, version=0, history=True)


def test_region_entered_twice_leaves_autocast_on(model: Model) -> None:
    region = model.construct("cpu", dtype=None, enabled=True, cache=None)
    model.enter(region)
    model.enter(region)
    model.leave(region)
    model.leave(region)
    assert model.enabled["cpu"]


def test_outermost_exit_drops_cached_copies(model: Model) -> None:
    uses = []
    for _ in range(2):
        outer, inner = (model.construct("cpu", dtype=None, enabled=True, cache=None) for _ in range(2))
        model.enter(outer)
        uses.append(model.use("cpu", Weight.TRAINED, Mode.GRAD).casts)
        model.enter(inner)
        model.leave(inner)
        uses.append(model.use("cpu", Weight.TRAINED, Mode.GRAD).casts)
        model.leave(outer)
    assert uses == [1, 0, 1, 0]


def test_cached_copy_does_not_follow_weight_changes(model: Model) -> None:
    model.enter(model.construct("cpu", dtype=None, enabled=True, cache=None))
    for weight in (Weight.TRAINED, Weight.FROZEN):
        model.use("cpu", weight, Mode.GRAD)
        model.change(weight)
    assert model.use("cpu", Weight.TRAINED, Mode.GRAD) == Use("bfloat16", 0, 0, history=True)
    assert model.use("cpu", Weight.FROZEN, Mode.GRAD) == Use("bfloat16", 1, 1, history=False)


@pytest.mark.parametrize("retained", [True, False])
def test_copy_created_under_no_grad_has_history_only_if_retained(*, retained: bool) -> None:
    model = Model(Facts(FACTS.defaults, FACTS.supported, history_kept=retained))
    model.enter(model.construct("cpu", dtype=None, enabled=True, cache=None))
    model.use("cpu", Weight.TRAINED, Mode.NO_GRAD)
    assert model.use("cpu", Weight.TRAINED, Mode.GRAD).history is retained


def test_model_imports_no_torch() -> None:
    code = "import sys, pytest_amp.semantics.model; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
