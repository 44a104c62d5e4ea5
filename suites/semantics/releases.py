"""Features of torch that the oldest supported releases lack: flags and marks that depend on the release."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.data_files.releases import release_of

RELEASE = release_of(torch.__version__)

#: Whether autocast's cached copy of a weight keeps its autograd history when it was cached under no_grad, and inference
#: mode bypasses the cache (pytorch/pytorch#165068).
HISTORY_KEPT = RELEASE >= (2, 11)

REGISTER_AUTOCAST = pytest.mark.skipif(
    RELEASE < (2, 7), reason="custom operators have register_autocast since torch 2.7"
)
