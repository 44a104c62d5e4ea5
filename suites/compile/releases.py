"""What is truly wrong in some of the releases that the suite runs on: all of it, in one place."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version

from pytest_amp.failure import AmpFailure

RELEASE = Version(torch.__version__).release

BACKWARD_REPORT = (
    "pytorch/pytorch#179804, #153044: AOTAutograd traces backward in the region in which the function is called, "
    "whatever regions are inside of it"
)
BACKWARD = pytest.mark.xfail(strict=True, raises=AmpFailure, reason=BACKWARD_REPORT)

HAS_BACKWARD_SETTING = pytest.mark.skipif(
    RELEASE < (2, 9), reason="torch has backward_pass_autocast since 2.9 (pytorch/pytorch#156356)"
)

#: Read by inductor's C++ kernels in 2.13.0, not in 2.11.0; Triton's know it for longer.
_NOT_EMULATED = "pytorch/pytorch#179561: inductor's C++ kernels do not know emulate_precision_casts yet"
EMULATED_ON_CPU = pytest.mark.amp(xfail={"cpu": _NOT_EMULATED} if RELEASE < (2, 12) else {})
