"""Gradients that torch's GradScaler cannot unscale, refused before a training begins."""

from __future__ import annotations

import functools

import torch

from pytest_amp.failure import AmpUsageError, is_usage_error

__tracebackhide__ = is_usage_error


def expect_unscaled(case: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Raise AmpUsageError for a complex parameter that a scaler would have to unscale, if torch cannot."""
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    names = [name for name, parameter in model.named_parameters() if parameter.is_complex() and parameter in trained]
    if names and not unscales_complex(device):
        raise AmpUsageError(
            f"case {case}: {names[0]} is complex, and torch's GradScaler unscales no complex gradients; "
            "expected real parameters, of which forward makes complex ones, or training without a scaler, in bf16"
        )


@functools.cache
def unscales_complex(device: torch.device) -> bool:
    """Return whether GradScaler unscales complex gradients on ``device``: torch 2.6 to 2.15 have no such kernel."""
    try:
        parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.complex64, device=device))
        parameter.grad = torch.ones_like(parameter)
        scaler = torch.amp.GradScaler(device.type, init_scale=1.0)
        scaler.scale(torch.ones((), device=device))
        scaler.unscale_(torch.optim.SGD([parameter], lr=0.0))
    except (RuntimeError, TypeError):
        return False
    return True
