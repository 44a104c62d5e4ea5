"""Every check of ``amp`` over every real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import AdamW

from tests.real_models.model import RealModel
from tests.real_models.registry import MODELS

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the libraries are theirs


def _rows(rows: tuple[RealModel, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in rows])


every_model = _rows(MODELS)
selected_models = _rows(tuple(row for row in MODELS if row.selected))


@every_model
def test_gradients(amp: Any, case: Any) -> None:
    amp.check_gradients(case)


@every_model
def test_scaler(amp: Any, case: Any) -> None:
    amp.check_scaler(case)


@every_model
def test_casts(amp: Any, case: Any) -> None:
    amp.check_casts(case)


@every_model
def test_memory(amp: Any, case: Any) -> None:
    amp.check_memory(case)


@every_model
def test_check(amp: Any, case: Any) -> None:
    amp.check(case)


@every_model
def test_training(amp: Any, case: Any, model: RealModel) -> None:
    amp.check_training(case, steps=model.steps, optimizer=lambda parameters: AdamW(parameters, lr=model.rate))


@selected_models
def test_compiled(amp: Any, case: Any) -> None:
    amp.check_compiled(case, backend="aot_eager")


@selected_models
def test_dtypes(amp: Any, case: Any, model: RealModel) -> None:
    widths = {"low": amp.dtype, "float32": torch.float32}
    amp.check_dtypes(case, {path: widths[width] for path, width in model.dtypes.items()})


@selected_models
def test_trace(amp: Any, case: Any, model: RealModel) -> None:
    table = str(amp.trace(case))
    assert [path for path in model.dtypes if path and "*" not in path and path not in table] == []
