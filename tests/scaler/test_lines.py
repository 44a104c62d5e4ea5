"""check_scaler reports the line of each mistake in a loop, and accepts a loop that computes its own loss."""

from __future__ import annotations

import re

import pytest

from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import FP16
from pytest_amp.scaler import Training, check_scaler
from pytest_amp.scaler.iteration import Train
from tests.check.models import WRONG_LOOPS, by_nothing, marked, turned, usual
from tests.observing import Noted

pytestmark = pytest.mark.usefixtures("one_thread")


def check(train: Train) -> None:
    training = Training(
        turned(by_nothing),
        find_device("cpu"),
        FP16,
        train=train,
        overflow_gradients_at=(2,),
        overflow_activations_at=(6,),
    )
    noted = Noted()
    check_scaler(training, noted.observe, nonfinite_buffers=(), note=noted.note)


@pytest.mark.parametrize("name", WRONG_LOOPS)
def test_wrong_loop_is_reported_with_its_line(name: str) -> None:
    train, words = WRONG_LOOPS[name]
    with pytest.raises(AmpFailure) as raised:
        check(train)
    message = str(raised.value)
    assert words in message
    assert {int(line) for line in re.findall(r"models\.py:(\d+)", message)} & marked(name), message


def test_loop_that_computes_its_own_loss_passes() -> None:
    check(usual)
