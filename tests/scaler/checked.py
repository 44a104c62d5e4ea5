"""check_scaler on a CPU, with an overflow of the gradients in iteration 2 and of an activation in iteration 6."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import Iteration, MakeOptimizer, TraceStep, Training, check_scaler, plain_sgd, standard_step
from tests.observing import Noted

BOTH = pytest.mark.parametrize("precision", [FP16, BF16], ids=["fp16", "bf16"])


def checked(  # keywords of the check
    case: Case,
    noted: Noted | None = None,
    *,
    precision: Precision = FP16,
    train: Callable[[Iteration], object] = standard_step,
    make_optimizer: MakeOptimizer = plain_sgd,
    overflow_activations_at: Collection[int] = (6,),
    nonfinite_buffers: Collection[str] = (),
    activations_required: bool = True,
) -> tuple[TraceStep, ...]:
    """Check a case, and write its observations and notes to ``noted``."""
    training = Training(
        case,
        find_device("cpu"),
        precision,
        train=train,
        make_optimizer=make_optimizer,
        overflow_gradients_at=(2,),
        overflow_activations_at=overflow_activations_at,
    )
    noted = Noted() if noted is None else noted
    return check_scaler(
        training,
        noted.observe,
        nonfinite_buffers=nonfinite_buffers,
        note=noted.note,
        activations_required=activations_required,
    )
