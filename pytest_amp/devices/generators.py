"""Seeding of torch's generators."""

from __future__ import annotations


def seed_torch(seed: int) -> None:
    """Seed the CPU's generator and, with an accelerator, those of all devices.

    ``torch.manual_seed`` formats the stack of its caller for each back end that might still be initialised (torch 2.13:
    ``_lazy_call`` in torch/cuda/__init__.py). Without an accelerator none is, and the formatting took a tenth of a
    run's time.
    """
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
