"""Layers and operators do not query autocast's state: a region changes their dtypes only by autocast's own casts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, zoo
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import asked_for_autocast, run_step

from . import layers, operators

CASES: dict[str, list[Case]] = {
    "zoo": list(zoo()),
    "layers": [layers.case_of(name, layer) for name, layer in layers.LAYERS.items() if name != "island"],
    "operators": [operators.case_of(name, operator) for name, operator in operators.OPERATORS.items()],
}


# See test_operators.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("group", CASES)
def test_nothing_asks_for_autocast(amp: SuiteAmp, group: str) -> None:
    """Fail on a query: comparison with manual casts cannot detect a function that branches on autocast's state."""
    asking = dict(_asking(amp, CASES[group]))
    amp.observe(f"{group}/asks", len(asking), kind="count")
    if asking:
        name, queries = next(iter(asking.items()))
        raise AmpFailure(
            f"{name} queries autocast's state in its step: {', '.join(sorted(set(queries)))}"
            f"{f'; so do {len(asking) - 1} more' if len(asking) > 1 else ''}",
            label_before="measured",
            before="none does in torch 2.6 to 2.14",
            now=f"torch {torch.__version__}, {amp.device.describe()}",
            likely="a Python function of torch behaves differently inside a region, apart from autocast's rules",
        )


def _asking(amp: SuiteAmp, cases: Iterable[Case]) -> Iterable[tuple[str, list[str]]]:
    for case in cases:
        realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
        with asked_for_autocast() as queries:
            run_step(case, realised, contextlib.nullcontext, seed=amp.config.seed)
        if queries:
            yield case.name, queries
