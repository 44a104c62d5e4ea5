"""Modules that compile themselves."""

from __future__ import annotations


def compiles_itself(module: object) -> bool:
    """Return whether ``module`` is a result of ``torch.compile``, or was compiled in place by its ``compile`` method.

    The former is of a class of torch._dynamo, the latter has ``_compiled_call_impl`` (torch/nn/modules/module.py).
    Where both are missing, the result is False, and an error of Dynamo is reported in its own words.
    """
    by_dynamo = type(module).__module__.startswith("torch._dynamo")
    return by_dynamo or getattr(module, "_compiled_call_impl", None) is not None
