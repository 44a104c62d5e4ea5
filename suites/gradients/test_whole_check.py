"""``amp.check`` on a whole model: networks of each kind have no findings, and compute the same in every dtype.

Users call the same check.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, cnn, decoder, mlp


@pytest.mark.parametrize("case", [mlp(), cnn(), decoder()], ids=str)
def test_a_network_has_no_findings(amp: SuiteAmp, case: Case) -> None:
    """The case has a name of its own: other files observe its gradients, too, and each key has one test."""
    assert amp.check(replace(case, name=f"{case.name}, whole")).errors == ()
