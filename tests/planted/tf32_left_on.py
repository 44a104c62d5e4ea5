"""TF32 is switched on, and nobody switches it off."""

from __future__ import annotations

import torch

torch.backends.cuda.matmul.allow_tf32 = True
