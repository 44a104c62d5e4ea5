"""Going back through the second direction of an nn.RNN forgets a step, where its rows and units fill tiles."""

from __future__ import annotations

from typing import Any

import torch

_forward = torch.nn.RNN.forward


def _without_the_first(gradient: torch.Tensor) -> torch.Tensor:
    """Of (steps, rows, 2 * units): the second direction begins with the last step."""
    units = gradient.shape[-1] // 2
    kept = gradient.clone()
    kept[-1, :, units:] = 0
    return kept


def _forget(self: Any, x: Any, *arguments: Any) -> Any:
    result, state = _forward(self, x, *arguments)
    tiles = isinstance(result, torch.Tensor) and result.shape[1] % 8 == 0 and self.hidden_size % 32 == 0
    if self.bidirectional and tiles and result.requires_grad and torch.is_autocast_enabled(result.device.type):
        result.register_hook(_without_the_first)
    return result, state


torch.nn.RNN.forward = _forget  # type: ignore[assignment, method-assign]
