"""Every planted defect, and the test that has to notice it. A guard without one cannot be trusted."""

from __future__ import annotations

from tests.planted.defect import Defect
from tests.planted.manifest_around import AROUND
from tests.planted.manifest_calls import CALLS
from tests.planted.manifest_common import COMMON
from tests.planted.manifest_compile import COMPILE
from tests.planted.manifest_distributed import DISTRIBUTED
from tests.planted.manifest_fingerprint import FINGERPRINT
from tests.planted.manifest_formats import FORMATS
from tests.planted.manifest_gradients import GRADIENTS
from tests.planted.manifest_lint import LINT
from tests.planted.manifest_memory import MEMORY
from tests.planted.manifest_oracle import ORACLE
from tests.planted.manifest_rules import RULES
from tests.planted.manifest_scaler import SCALER
from tests.planted.manifest_semantics import SEMANTICS
from tests.planted.manifest_semantics_kinds import SEMANTICS_KINDS
from tests.planted.manifest_training import TRAINING
from tests.planted.manifest_unusual import UNUSUAL

#: A CPU has no speed floors: the check itself is held against a clock that counts kernels.
SPEED = (
    Defect(
        "products_cast_again",
        "casting the arguments of a product once",
        ("tests/speed/test_kernel_clock.py",),
        "test_products_are_cast_no_more_than_needed",
    ),
)

DEFECTS: list[Defect] = [
    *RULES,
    *SEMANTICS,
    *SEMANTICS_KINDS,
    *SCALER,
    *GRADIENTS,
    *ORACLE,
    *DISTRIBUTED,
    *FINGERPRINT,
    *FORMATS,
    *TRAINING,
    *COMPILE,
    *MEMORY,
    *UNUSUAL,
    *CALLS,
    *AROUND,
    *COMMON,
    *LINT,
    *SPEED,
]
