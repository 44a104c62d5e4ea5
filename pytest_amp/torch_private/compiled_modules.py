"""Modules that compile themselves."""

from __future__ import annotations


def compiles_itself(module: object) -> bool:
    """Whether ``module`` came from ``torch.compile``, or was compiled in place by its own method.

    The one is of a class of torch._dynamo, the other has ``_compiled_call_impl`` (torch/nn/modules/module.py); where
    these have gone, no module does, and what dynamo raises is told in its own words.
    """
    made = type(module).__module__.startswith("torch._dynamo")
    return made or getattr(module, "_compiled_call_impl", None) is not None
