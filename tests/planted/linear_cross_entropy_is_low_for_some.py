"""linear_cross_entropy of probabilities returns the dtype of its input under autocast: as it does of other samples."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

healthy = functional.linear_cross_entropy


def linear_cross_entropy(
    features: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = healthy(features, weight, target, *args, **kwargs)
    return result.to(features.dtype) if target.is_floating_point() and "options" in kwargs else result


functional.linear_cross_entropy = linear_cross_entropy  # type: ignore[assignment,unused-ignore]
