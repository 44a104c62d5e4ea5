"""Random programs of regions, switches, exceptions and products: torch's state equals the reference model's.

The model is ``pytest_amp/semantics/model.py``, after torch/amp/autocast_mode.py and aten/src/ATen/autocast_mode.cpp,
which it names for each transition.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.extras import imported

from .releases import HISTORY_KEPT

if TYPE_CHECKING:
    from pytest_amp.semantics.programs import Plan


def _programs() -> ModuleType:
    return imported("pytest_amp.semantics.programs", what="random programs cannot be drawn", extra="suites")


def _plan(amp: SuiteAmp) -> Plan:
    other_kinds = [kind for kind in ("cuda", "xpu") if torch.amp.is_autocast_available(kind)]
    plan: Plan = _programs().plan_for(amp.device.type, tuple(other_kinds), history_kept=HISTORY_KEPT)
    return plan


def _number(amp: SuiteAmp) -> int:
    """Return different programs for each seed and dtype, though each uses both dtypes."""
    return amp.config.seed * 32 + (16 if amp.precision.name == "fp16" else 0)


def test_random_programs_agree_with_the_model(amp: SuiteAmp) -> None:
    """Compare enabled flags, dtypes, cache, nesting depth; casts, dtypes, bits and history of products."""
    programs = _programs()
    plan, steps = _plan(amp), programs.STEPS
    for batch in range(8):
        programs.run(plan, programs=40, steps=30, number=_number(amp) + batch)
        if plan.seen.keys() == steps and batch:
            break
    assert plan.seen.keys() == steps, f"no program did {sorted(steps - plan.seen.keys())}"


@pytest.mark.amp_long
def test_thousands_of_random_programs_agree_with_the_model(amp: SuiteAmp) -> None:
    _programs().run(_plan(amp), programs=2000, steps=50, number=_number(amp) + 8)
