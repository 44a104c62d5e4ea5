"""Every kind of network keeps its outputs, its gradients and its statistics in mixed precision."""

from __future__ import annotations

import pytest

from pytest_amp.cases import zoo

@pytest.mark.parametrize("case", zoo(), ids=lambda c: c.name)
def test_zoo(amp, case):
    amp.check_gradients(case)
