"""``amp.check`` on whole models: each kind of network has no findings, and computes the same in every dtype.

The check is the public one, as users call it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, cnn, decoder, mlp


@pytest.mark.parametrize("case", [mlp(), cnn(), decoder()], ids=str)
def test_a_network_has_no_findings(amp: SuiteAmp, case: Case) -> None:
    """Rename the case: other tests record its gradients, too, and each record key belongs to one test."""
    assert amp.check(replace(case, name=f"{case.name}, whole")).errors == ()
