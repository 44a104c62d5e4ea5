"""Rounding models of the operators: read ``models.toml``, and evaluate the model of an operation."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.numerics.oracle import formulas, products
from pytest_amp.numerics.oracle.conversion import SILENTLY_WRITTEN
from pytest_amp.numerics.oracle.operation import Operation
from pytest_amp.text.quoted import quoted

MODELS_FILE = "pytest_amp/numerics/oracle/models.toml"


class ModelName(enum.Enum):
    """Rounding behaviour of an operator's kernel; ``models.toml`` describes each value."""

    ONCE = "once"
    TWO_STEP = "two_step"
    SAVED_OUTPUT = "saved_output"
    IN_FLOAT32 = "in_float32"
    RUNNING_SUM = "running_sum"
    EITHER = "either"
    FUSED = "fused"
    ANY_ORDER = "any_order"
    UNMODELLED = "unmodelled"


@dataclass(frozen=True)
class Model:
    """The rounding model of one overload on a device type and dtype.

    ``factor`` is the ratio of the kernel's error to the model's; ``source`` states where the model comes from.
    """

    name: ModelName = ModelName.ONCE
    factor: float = 1.0
    source: str = "accumulates in float32 or wider, and rounds once"


_COLUMNS = {
    *("overloads", "device_types", "dtype", "without_onednn", "since", "until", "model", "factor", "source"),
}


@functools.cache
def _rows() -> list[dict[str, Any]]:
    text = resources.files("pytest_amp.numerics.oracle").joinpath("models.toml").read_text(encoding="utf-8")
    rows = toml.loads(text)["models"]
    assert isinstance(rows, list)
    for row in rows:
        unknown = row.keys() - _COLUMNS
        if unknown or row["model"] not in {name.value for name in ModelName}:
            raise ValueError(f"{MODELS_FILE}: {row.get('overloads')}: {sorted(unknown) or row['model']!r} is not known")
    return rows


def _holds(row: dict[str, Any]) -> bool:
    """Return whether a row applies to this torch: ``since`` and ``until`` are its first and last release."""
    return holds_in(release_of(torch.__version__), since=row.get("since"), until=row.get("until"))


@functools.cache
def model_of(overload: str, device_type: str, dtype: str) -> Model:
    """Return an overload's model on a device type for the low dtype ``bf16`` or ``fp16``; later rows win."""
    model = Model()
    for row in _rows():
        here = device_type in row.get("device_types", [device_type]) and dtype == row.get("dtype", dtype)
        here = here and not (row.get("without_onednn") and torch_private.cpu_has_onednn_kernels(dtype))
        if here and _holds(row) and overload in row["overloads"]:
            model = Model(ModelName(row["model"]), float(row.get("factor", 1.0)), row["source"])
    return model


#: Names of dtypes in rows; a row for one dtype applies to operations with real arguments or results of that dtype.
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def dtype_of(operation: Operation) -> str:
    """Return the name in rows of an operation's low dtype; ``fp32`` if it has none."""
    for dtype in (*operation.given, *operation.returned):
        if dtype in _NAMES:
            return _NAMES[dtype]
    return "fp32"


def model_for(operation: Operation) -> Model:
    """Return the model that applies to an operation."""
    return model_of(operation.name, operation.device_type, dtype_of(operation))


def _formula(operation: Operation) -> formulas.Formula | None:
    if operation.name in formulas.ALWAYS:
        return formulas.ALWAYS[operation.name]
    model = model_for(operation).name
    if model is ModelName.IN_FLOAT32:
        return Operation.of_float32
    key = (model.value, operation.name)
    formula = formulas.ON_CUDA.get(key) if operation.device_type == "cuda" else None
    return formula or formulas.BY_MODEL.get(key)


class NotModelled(Exception):  # no error suffix: a stand-in replaces the operator
    """Exception for an operator without a float64 kernel and without a formula for these arguments."""


#: The exceptions of kernels and formulas for dtypes, sizes or arguments that they do not support.
REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError, KeyError, AssertionError)


def evaluate(operation: Operation) -> list[Any]:
    """Return the flat float64 results of an operation, rounded by its model if the operation rounds.

    Raises NotModelled if there is no model; ``Operation.stand_in`` is then the closest replacement.
    """
    try:
        return _modelled(operation)
    except REFUSALS as error:
        raise NotModelled(quoted(error, 120)) from error


def _modelled(operation: Operation) -> list[Any]:
    formula = _formula(operation)
    if formula is None or (not operation.rounds and operation.name not in formulas.ALWAYS):
        return operation.once()
    return formula(operation)


def evaluate_both(operation: Operation) -> tuple[list[Any], Iterator[list[Any]]]:
    """Return the results without rounding, and the results rounded by each alternative of the model.

    An operator without a formula runs only once. Raises NotModelled.
    """
    formula, unrounded = _formula(operation), replace(operation, rounds=False)
    if formula is None:
        exact = evaluate(unrounded)
        return exact, iter([operation.finished(exact)])
    # Arguments that are mutated, including statistics, must be mutated only once.
    if operation.name in SILENTLY_WRITTEN or torch_private.aliasing_of(operation.overload).writes:
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in operation.args]
        unrounded = replace(unrounded, args=tuple(args))
    return evaluate(unrounded), _ways(operation, formula)


def _ways(operation: Operation, formula: formulas.Formula) -> Iterator[list[Any]]:
    yield formula(operation)
    model = model_for(operation).name
    if model is ModelName.IN_FLOAT32 and operation.device_type == "cpu":
        yield operation.of_float32(onednn=operation.returned[0] == torch.float16)
    if model is ModelName.EITHER:
        for other in formulas.OTHER_WAYS.get(operation.name, (products.once,)):
            yield from other(operation)
