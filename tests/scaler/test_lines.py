"""check_scaler reports the line of each mistake in a loop, and accepts a loop that computes its own loss."""

from __future__ import annotations

import re

import pytest

from pytest_amp.failure import AmpFailure
from tests.check.models import WRONG_LOOPS, by_nothing, marked, turned, usual
from tests.scaler.checked import checked

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", WRONG_LOOPS)
def test_wrong_loop_is_reported_with_its_line(name: str) -> None:
    train, words = WRONG_LOOPS[name]
    with pytest.raises(AmpFailure) as raised:
        checked(turned(by_nothing), train=train)
    message = str(raised.value)
    assert words in message
    assert {int(line) for line in re.findall(r"models\.py:(\d+)", message)} & marked(name), message


def test_loop_that_computes_its_own_loss_passes() -> None:
    checked(turned(by_nothing), train=usual)
