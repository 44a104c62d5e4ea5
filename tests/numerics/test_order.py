"""Nondeterministic reductions of kernels, determined by asking torch, by name."""

from __future__ import annotations

import torch

from pytest_amp.numerics.order import deterministic, different_bits
from pytest_amp.numerics.step import Step


def _put(value: float) -> Step:
    """Call ``put_``, which has no order of its own, on a CPU either."""
    result = torch.zeros(4).put_(torch.tensor([1]), torch.tensor([value]))
    return Step({"y": result}, {}, {}, {}, 1.0)


def _sum(value: float) -> Step:
    return Step({"y": torch.full((4,), value)}, {}, {}, {}, 1.0)


def test_nondeterministic_operator_is_named_and_the_mode_is_restored() -> None:
    before = torch.get_deterministic_debug_mode()
    with deterministic() as without:
        _sum(1.0)
    assert without == []
    with deterministic() as without:
        assert torch.get_deterministic_debug_mode() == 1
        _put(1.0)
        _put(2.0)
    assert without == ["put_"]
    assert torch.get_deterministic_debug_mode() == before


def test_bits_are_compared_only_if_both_steps_repeat_them() -> None:
    assert different_bits(lambda: _sum(1.0), lambda: _sum(1.0)) == frozenset()
    assert different_bits(lambda: _sum(1.0), lambda: _sum(2.0)) == frozenset({"output.y"})
    assert different_bits(lambda: _put(1.0), lambda: _put(2.0)) is None
    drawn = iter(range(10))
    assert different_bits(lambda: _sum(float(next(drawn))), lambda: _sum(1.0)) is None
    assert different_bits(lambda: _sum(1.0), lambda: _sum(float(next(drawn)))) is None
