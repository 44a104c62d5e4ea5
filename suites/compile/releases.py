"""Features that some of the releases that the suite runs on do not have yet, all in one place.

Run on torch 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.11.0, 2.12.1, 2.13.0 and 2.14.1. Faults are in suites/known.toml.
"""

from __future__ import annotations

import pytest
import torch

from pytest_amp.data_files.releases import release_of

_RELEASE = release_of(torch.__version__)

HAS_BACKWARD_SETTING = pytest.mark.skipif(
    _RELEASE < (2, 9), reason="torch has backward_pass_autocast since 2.9 (pytorch/pytorch#156356)"
)
#: Earlier releases reuse code that was compiled for one autocast dtype in a region of the other.
DTYPE_IS_GUARDED = _RELEASE >= (2, 7)
#: Traces of 2.9 and older decompose the backward of silu into five operators, each of which rounds.
TAKES_NOTHING_APART = _RELEASE >= (2, 11)
