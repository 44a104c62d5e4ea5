"""Options that are tried with every optimizer."""

from __future__ import annotations

import inspect

import pytest
import torch

from pytest_amp.scaler.optimizers import IMPLEMENTATIONS, VARIANTS, make_optimizer, options_of


@pytest.mark.parametrize(
    "variant", [name for name, variant in VARIANTS.items() if hasattr(torch.optim, variant.class_name)]
)
def test_options_differ_from_the_defaults(variant: str) -> None:
    usual = inspect.signature(getattr(torch.optim, VARIANTS[variant].class_name)).parameters
    variant_values = {name: parameter.default for name, parameter in usual.items()} | dict(VARIANTS[variant].keywords)
    options = list(options_of(variant))
    assert len(options) > 2
    assert all(
        any(value is not variant_values[name] and value != variant_values[name] for name, value in option.items())
        for option in options
    )
    names = {name for option in options for name in option}
    assert not names & {name for implementation in IMPLEMENTATIONS.values() for name in implementation}
    assert "differentiable" not in names


def test_make_optimizer_passes_options() -> None:
    """Include momentum, without which some options have no effect."""
    options = list(options_of("SGD, loop"))
    assert {"nesterov": True, "momentum": 0.5} in options
    result = make_optimizer("SGD, loop", [torch.nn.Parameter(torch.ones(2))], {"maximize": True})
    assert result.defaults["maximize"] is True
    assert result.defaults["lr"] == 0.125
