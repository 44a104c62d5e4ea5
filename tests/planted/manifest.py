"""Every planted defect, and the test that has to notice it. A guard without one cannot be trusted."""

from __future__ import annotations

from tests.planted.defect import Defect
from tests.planted.manifest_gradients import GRADIENTS
from tests.planted.manifest_rules import RULES
from tests.planted.manifest_scaler import SCALER
from tests.planted.manifest_semantics import SEMANTICS

DEFECTS: list[Defect] = [*RULES, *SEMANTICS, *SCALER, *GRADIENTS]
