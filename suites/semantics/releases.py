"""Features that some of the releases that the suite runs on do not have yet, all in one place."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.data_files.releases import release_of

RELEASE = release_of(torch.__version__)

#: pytorch/pytorch#165068: a copy cached under no_grad keeps its history; inference mode bypasses the cache.
HISTORY_KEPT = RELEASE >= (2, 11)

REGISTER_AUTOCAST = pytest.mark.skipif(
    RELEASE < (2, 7), reason="custom operators have register_autocast since torch 2.7"
)
