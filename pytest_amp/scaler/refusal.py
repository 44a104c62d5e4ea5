"""Likely cause of what GradScaler, or the optimizer that it calls, refuses."""

from __future__ import annotations


def likely_of_refusal(error: Exception, *, by_optimizer: bool) -> str:
    """Return why the scaler, or the optimizer, refuses, by the words of its error."""
    if "FP16 gradients" in str(error):  # unscale_ in torch/amp/grad_scaler.py
        return "parameters that are float16: keep them in float32, which autocast casts"
    if by_optimizer:
        return "it does not take such parameters or gradients: optimizer= makes another"
    return "a call is missing, doubled or in the wrong place: scale, unscale_, step, update"
