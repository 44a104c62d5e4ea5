"""Known faults and missing features in some of the releases that the suite runs on, all in one place."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.data_files.releases import release_of

RELEASE = release_of(torch.__version__)

#: pytorch/pytorch#165068: a copy cached under no_grad keeps its history; inference mode bypasses the cache.
HISTORY_KEPT = RELEASE >= (2, 11)
_HISTORY = "pytorch/pytorch#112583, #65766, #141896: a copy cached under no_grad has no history (mended by #165068)"
NO_HISTORY = pytest.mark.xfail(not HISTORY_KEPT, strict=True, reason=_HISTORY)

REGISTER_AUTOCAST = pytest.mark.skipif(
    RELEASE < (2, 7), reason="custom operators have register_autocast since torch 2.7"
)

EXPORTED_DTYPES = pytest.mark.xfail(
    RELEASE < (2, 8),
    strict=True,
    reason="no report found: torch.export records float32 for what a region computed (torch 2.7.1; right in 2.8.0)",
)
