"""What is not there yet in some of the releases that the suite runs on: all of it, in one place."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.releases import release_of

RELEASE = release_of(torch.__version__)

GROUPED_FLASH = pytest.mark.skipif(
    RELEASE < (2, 9), reason="the CPU's flash kernel takes grouped queries since torch 2.9 (pytorch/pytorch#157893)"
)
