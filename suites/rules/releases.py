"""Features that some of the releases that the suite runs on do not have yet, all in one place."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.data_files.releases import release_of

RELEASE = release_of(torch.__version__)

GROUPED_FLASH = pytest.mark.skipif(
    RELEASE < (2, 9), reason="the CPU's flash kernel takes grouped queries since torch 2.9 (pytorch/pytorch#157893)"
)
